"""An encrypted field is plain in the handler and ciphertext in the store, bound to its type and field, under keys."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    ConfigurationError,
    Context,
    DecryptionFailed,
    Encrypted,
    EncryptionKeyMissing,
    InvalidPayload,
    encryption,
)
from backstay.client import Client, RemoteWorker
from tests.app import encrypted_jobs
from tests.app.encrypted_jobs import Secret
from tests.server.far import listening

CARD = "4111-1111-1111-1111"
KEYS = {name: base64.urlsafe_b64encode(name.encode() * 20)[:43].decode() for name in ("old", "new")}


class Line(BaseModel):
    note: Encrypted[list[str]] = []


class Nested(BaseModel):
    name: str
    card: Encrypted[str]
    nested: Line = Line()


class Order(BaseModel):
    number: int
    card: Encrypted[str]
    pin: Encrypted[int | None] = None
    lines: list[Line] = []
    by_name: dict[str, Line] = {}
    other: Encrypted[Line] | None = Field(None, alias="otherLine")


@dataclasses.dataclass
class Plain:
    card: Encrypted[str]
    amount: int


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*names: str) -> None:
        monkeypatch.setenv("BACKSTAY_ENCRYPTION_KEYS", ",".join(f"{name}:{KEYS[name]}" for name in names))

    use("old")
    return use


@pytest.fixture
def orders(app: Backstay) -> Backstay:
    @app.job("order", max_attempts=2, backoff=Backoff(base=0.01, jitter=0))
    async def order(payload: Order) -> str:
        return payload.card

    return app


def written(folder: Path) -> bytes:
    """Everything that is stored."""
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_every_kind_of_value_is_plain_in_the_handler_and_nowhere_else(
    app: Backstay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = Order(
        number=7,
        card=CARD,
        pin=424242,
        lines=[Line(note=["secret-1", "é☃"]), Line()],
        by_name={"a/b~c": Line(note=["secret-2"])},
        otherLine=Line(note=["secret-3"]),
    )
    seen: list[Any] = []

    @app.job("order")
    async def order(payload: Order) -> Order:
        seen.append(payload)
        return payload

    @app.job("params")
    async def params(card: Encrypted[str], amount: int, *, ctx: Context) -> Encrypted[str]:
        seen.append((card, amount))
        return card

    @app.job("data")
    def data(payload: Plain) -> Plain:
        seen.append(payload)
        return payload

    async with app, app.worker():
        jobs = [
            await order.submit(given),
            await params.submit(card=CARD, amount=3),
            await data.submit(Plain(CARD, 3)),
            await app.submit("order", given.model_dump(by_alias=True)),
        ]
        assert [await job.result(timeout=20) for job in jobs[:3]] == [given, CARD, Plain(CARD, 3)]
        await jobs[3].wait(timeout=20)
        assert sorted(map(str, seen)) == sorted(map(str, [given, (CARD, 3), Plain(CARD, 3), given]))
        record = await jobs[0].record()
        assert record.payload["number"] == 7
        assert set(record.payload["card"]) == set(record.result["card"]) == {"$encrypted"}
        assert record.payload["card"] != record.result["card"]
        assert record.payload_as(order) == record.payload_as(Order) == record.result_as(Order) == given
    stored = written(tmp_path)
    for secret in (CARD, "424242", "secret-1", "secret-2", "secret-3", "é☃"):
        assert secret.encode() not in stored
        assert json.dumps(secret).strip('"').encode() not in stored
        assert secret not in caplog.text


async def test_a_handler_in_a_process_of_its_own_has_it_plain(make_app: Callable[..., Backstay]) -> None:
    async with encrypted_jobs.bind(make_app) as app, app.worker():
        job = await app.submit("child", Secret(name="Ada", card=CARD))
        record = await job.wait(timeout=20)
        assert record.status == "completed"
        assert record.result_as(Secret) == Secret(name=CARD, card="Ada")
        assert "Ada" not in str(record.result["card"])


async def test_each_job_of_a_batch_has_it_plain(app: Backstay) -> None:
    @app.batch_job("many", max_size=4)
    async def many(payloads: list[Secret], ctx: BatchContext) -> list[Secret]:
        return [Secret(name="done", card=each.card) for each in payloads]

    async with app, app.worker():
        jobs = await many.submit_many([Secret(name=str(n), card=f"card-{n}") for n in range(3)])
        assert [(await job.result(timeout=20)).card for job in jobs] == ["card-0", "card-1", "card-2"]
        assert "card-" not in str([(await job.record()).result for job in jobs])


async def test_a_remote_worker_and_a_server_without_the_code_encrypt_and_decrypt(app: Backstay, tmp_path: Path) -> None:
    async with app, listening(app) as url, Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("far")
        async def far(payload: Secret) -> Secret:
            return Secret(name=payload.card, card="answer")

        async with worker:
            job = await client.submit("far", {"name": "Ada", "card": CARD})
            assert set(job.payload["card"]) == {"$encrypted"}
            found = await job.result(timeout=20)
            assert found["name"] == CARD
            assert set(found["card"]) == {"$encrypted"}
            again = await client.submit("far", {"name": "Ada", "card": CARD}, idempotency_key="once")
            same = await client.submit("far", {"name": "Ada", "card": CARD}, idempotency_key="once")
            assert again.job_id == same.job_id


# Keys


async def test_without_a_key_nothing_is_stored(orders: Backstay, keys: Callable[..., None]) -> None:
    keys()
    async with orders as app:
        with pytest.raises(EncryptionKeyMissing, match="set BACKSTAY_ENCRYPTION_KEYS"):
            await app.submit("order", Order(number=1, card=CARD))
        assert sum((await app.counts()).values()) == 0


async def test_a_worker_without_the_key_retries_and_never_runs_with_ciphertext(
    orders: Backstay, keys: Callable[..., None]
) -> None:
    async with orders as app:
        job = await app.submit("order", Order(number=1, card=CARD))
        keys("new")
        async with app.worker():
            failed = await job.wait(timeout=20)
            assert (failed.status, failed.failures, failed.row.error_type) == ("failed", 2, "EncryptionKeyMissing")
            assert "'old', which this process does not have (it has new)" in str(failed.last_error)
            keys("new", "old")
            await job.retry()
            assert await job.result(timeout=20) == CARD


async def test_the_first_key_encrypts_and_all_of_them_decrypt(orders: Backstay, keys: Callable[..., None]) -> None:
    async with orders as app:
        first = await app.submit("order", Order(number=1, card=CARD))
        keys("new", "old")
        second = await app.submit("order", Order(number=1, card=CARD))
        names = [(await job.record()).payload["card"]["$encrypted"].partition(".")[0] for job in (first, second)]
        assert names == ["old", "new"]
        async with app.worker():
            assert [await job.result(timeout=20) for job in (first, second)] == [CARD, CARD]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("abc", "needs a name"),
        (":abc", "needs a name"),
        ("a b:abc", "needs a name"),
        ("k:abc", "is not 32 bytes"),
        ("k:" + "é" * 43, "is not 32 bytes"),
        (f"k:{KEYS['old']},k:{KEYS['new']}", "two keys 'k'"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_without_telling_the_key(setting: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as told:
        encryption.parsed(setting)
    assert setting.partition(":")[2][:43] not in str(told.value) or ":" not in setting


# What ciphertext is bound to


def moved(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    document = json.loads(text)
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(pin=d["card"]),
        lambda d: d.update(card={"$encrypted": d["card"]["$encrypted"][:-2] + "AA"}),
        lambda d: d.update(card={"$encrypted": "old.!!!"}),
        lambda d: d.update(card={"$encrypted": "old." + base64.b64encode(b"short").decode()}),
        lambda d: d.update(card={"$encrypted": "old."}),
    ],
    ids=["another field", "changed", "no base64", "too short", "empty"],
)
async def test_ciphertext_that_was_changed_or_moved_does_not_decrypt(
    orders: Backstay, change: Callable[[dict[str, Any]], None]
) -> None:
    handler = orders.handlers["order"]
    text = handler.encode(Order(number=1, card=CARD))
    assert handler.decode(text).card == CARD
    with pytest.raises(DecryptionFailed):
        handler.decode(moved(text, change))


async def test_ciphertext_of_another_type_does_not_decrypt(app: Backstay) -> None:
    for name in ("one", "two"):

        @app.job(name)
        async def handler(payload: Secret) -> None: ...

    text = app.handlers["one"].encode(Secret(name="", card=CARD))
    with pytest.raises(DecryptionFailed):
        app.handlers["two"].decode(text)


async def test_a_place_in_a_list_is_not_part_of_the_field(orders: Backstay) -> None:
    handler = orders.handlers["order"]
    text = handler.encode(Order(number=1, card=CARD, lines=[Line(note=["a"]), Line(note=["b"])]))
    turned = handler.decode(moved(text, lambda d: d["lines"].reverse()))
    assert [line.note for line in turned.lines] == [["b"], ["a"]]


async def test_a_value_that_is_plain_in_the_store_is_taken_as_it_is(orders: Backstay) -> None:
    handler = orders.handlers["order"]
    assert handler.decode('{"number": 1, "card": "from SQL"}').card == "from SQL"
    with pytest.raises(InvalidPayload):
        handler.decode('{"number": 1, "card": 7}')


# Equality


async def test_equal_values_have_equal_ciphertext_so_that_jobs_can_be_compared(app: Backstay) -> None:
    children: list[str] = []

    @app.job("child")
    async def child(payload: Secret) -> str:
        return payload.card

    @app.job("parent", max_attempts=2, backoff=Backoff(base=0.01, jitter=0))
    async def parent(payload: None, ctx: Context) -> int:
        children.append((await ctx.submit(child, Secret(name="a", card=CARD), at_once=True)).job_id)
        if ctx.attempt == 1:
            raise ValueError("again")
        return len(await ctx.wait_for_children())

    async with app, app.worker():
        job = await parent.submit(None)
        assert await job.result(timeout=20) == 1
        assert len(set(children)) == 1
        one = await child.submit(Secret(name="a", card=CARD))
        other = await child.submit(Secret(name="a", card=CARD + "x"))
        assert (await one.record()).payload == (await app.get(children[0])).payload != (await other.record()).payload


@pytest.mark.parametrize(
    "options",
    [
        {"subject": "card:{card}"},
        {"dedup_key": "{md5(card)}"},
        {"content_hash": "{sha256(card)}"},
        {"reuse_by": ["card"]},
        {"subject": "{nested.note}"},
    ],
    ids=str,
)
def test_what_would_be_stored_in_plain_text_is_refused_when_it_is_registered(
    app: Backstay, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="in plain text"):

        @app.job("derives", **options)
        async def derives(payload: Nested) -> None: ...

    @app.job("fine", subject="name:{name}")
    async def fine(payload: Nested) -> None: ...
