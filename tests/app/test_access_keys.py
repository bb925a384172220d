"""Keys, sessions and the trail, as an app has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay import AuditRecord, Backstay, InvalidOption, KeyNotFound, StoreError, limits
from backstay.core import access_keys
from backstay.core.access_keys import CreatedKey
from backstay.core.records import ApiKey
from backstay.sync import Backstay as SyncBackstay
from backstay.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as opened:
        yield opened


async def let_in(app: Backstay, text: str) -> ApiKey | None:
    """As a server decides it."""
    parsed = access_keys.parse(text)
    assert parsed is not None
    return access_keys.check(parsed, {key.key_id: key for key in await app.store.keys()}, app.clock.now())


async def a_session(app: Backstay, of: CreatedKey) -> CreatedKey:
    key = await let_in(app, of.text)
    assert key is not None
    return await app.open_session(key)


async def test_a_key_lets_in_from_the_moment_it_is_made(app: Backstay) -> None:
    made = await app.create_key("ci", ["submit"], queues=["mail*"], by="ada")

    found = await let_in(app, made.text)
    assert found is not None
    assert (found.name, found.scopes, found.queues, found.created_by) == ("ci", ("submit",), ("mail*",), "ada")
    assert await app.api_keys() == [made.key]


async def test_an_application_can_check_a_key_for_routes_of_its_own(app: Backstay, clock: ManualClock) -> None:
    made = await app.create_key("ci", ["submit"], expires_in=60)
    other = await app.create_key("other", ["read"])

    assert await app.check_key(made.text) == made.key
    head, _, _ = made.text.rpartition("_")
    for wrong in ("", "no key", head, made.text[:-1], made.text.replace(made.key.key_id, other.key.key_id)):
        assert await app.check_key(wrong) is None
    assert await app.check_key((await a_session(app, made)).text) is None, "a session is the dashboard's alone"
    await app.revoke_key(other.key.key_id)
    assert await app.check_key(other.text) is None
    clock.advance(61)
    assert await app.check_key(made.text) is None


async def test_the_file_of_a_queue_has_no_secret_in_it(app: Backstay, tmp_path: Path) -> None:
    made = await app.create_key("ci", ["admin"])
    session = await a_session(app, made)

    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    for text in (made.text, session.text):
        assert text.split("_")[2].encode() in stored
        assert text.split("_")[3].encode() not in stored


async def test_a_key_ends_by_itself(app: Backstay, clock: ManualClock) -> None:
    made = await app.create_key("ci", ["read"], expires_in=timedelta(days=1))

    clock.advance(86_400)

    assert await let_in(app, made.text) is None
    assert [key.state for key in await app.api_keys()] == ["expired"]


@pytest.mark.parametrize("span", [0, -1, float("nan"), "soon", 3_661 * 86_400, float("inf"), True])
async def test_an_expiry_that_is_none_is_refused(app: Backstay, span: Any) -> None:
    with pytest.raises(InvalidOption, match="expires_in"):
        await app.create_key("ci", ["read"], expires_in=span)


async def test_a_revoked_key_lets_nobody_in_nor_do_its_sessions(app: Backstay) -> None:
    made, other = [await app.create_key(name, ["admin"]) for name in ("ci", "other")]
    session, others = await a_session(app, made), await a_session(app, other)

    revoked = await app.revoke_key(made.key.key_id, by="ada")

    assert (revoked.state, revoked.revoked_by) == ("revoked", "ada")
    assert [await let_in(app, each.text) for each in (made, session)] == [None, None]
    assert await let_in(app, other.text) is not None
    assert await let_in(app, others.text) is not None
    assert session.key.key_id not in {key.key_id for key in await app.store.keys()}


async def test_revoking_again_keeps_who_did_it_first_and_when(app: Backstay, clock: ManualClock) -> None:
    made = await app.create_key("ci", ["read"])
    first = await app.revoke_key(made.key.key_id, by="ada")
    clock.advance(3_600)

    assert await app.revoke_key(made.key.key_id, by="bob") == first


async def test_a_key_is_removed_once_it_is_over_and_not_before(app: Backstay, clock: ManualClock) -> None:
    revoked = await app.create_key("ci", ["read"])
    expired = await app.create_key("guest", ["read"], expires_in=60)
    await a_session(app, expired)
    with pytest.raises(InvalidOption, match="revoke it first"):
        await app.remove_key(revoked.key.key_id)

    await app.revoke_key(revoked.key.key_id)
    clock.advance(60)
    for made in (revoked, expired):
        await app.remove_key(made.key.key_id)

    assert await app.store.keys() == []


async def test_an_unknown_id_is_said_to_be_one_and_a_pasted_key_is_not_repeated(app: Backstay) -> None:
    made = await app.create_key("ci", ["read"])
    session = await a_session(app, made)

    for unknown in ("nobody", session.key.key_id, access_keys.SERVER_SECRET_ID, made.text):
        for change in (app.revoke_key, app.remove_key):
            with pytest.raises(KeyNotFound, match='"backstay keys" lists their ids') as raised:
                await change(unknown)
            assert made.text.split("_")[3] not in str(raised.value)


async def test_there_are_only_so_many(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_MAX", 2)
    made = [await app.create_key("ci", ["read"]) for _ in range(2)]
    await a_session(app, made[0])

    with pytest.raises(InvalidOption, match="remove some first"):
        await app.create_key("one too many", ["read"])


async def test_sessions_that_are_over_go_when_the_next_is_opened(
    app: Backstay, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 3)
    made = await app.create_key("ci", ["read"])
    old = [await a_session(app, made) for _ in range(2)]
    clock.advance(limits.SESSION_SECONDS)
    sessions = []
    for _ in range(5):
        clock.advance(1)
        sessions.append(await a_session(app, made))

    stored = {key.key_id for key in await app.store.keys()}
    assert stored == {made.key.key_id, *(each.key.key_id for each in sessions[-3:])}
    assert all(each.key.key_id not in stored for each in old)


async def test_logging_out_ends_that_session_and_touches_no_key(app: Backstay) -> None:
    made = await app.create_key("ci", ["read"])
    one, other = await a_session(app, made), await a_session(app, made)

    for key_id in (one.key.key_id, made.key.key_id, "nobody"):
        await app.close_session(key_id)

    assert await let_in(app, one.text) is None
    assert await let_in(app, other.text) is not None
    assert await let_in(app, made.text) is not None


async def test_all_servers_of_a_queue_have_one_secret(app: Backstay) -> None:
    found = await asyncio.gather(*(access_keys.server_secret(app.store) for _ in range(5)))

    assert len(set(found)) == 1
    assert len(found[0]) == 32
    assert await app.api_keys() == []


# The trail


async def test_a_change_is_in_the_trail_with_what_was_and_what_is(app: Backstay) -> None:
    async with app.audited("queue.pause", "mail", by="ada", via="http", before={"paused": False}) as entry:
        [before] = await app.audit_trail()
        assert before.outcome is None  # it is there before the change
        entry.after = {"paused": True}

    [record] = await app.audit_trail()
    assert isinstance(record, AuditRecord)
    assert (record.by, record.via, record.action, record.target) == ("ada", "http", "queue.pause", "mail")
    assert (record.before, record.after, record.outcome) == ({"paused": False}, {"paused": True}, "ok")


async def test_a_change_that_was_refused_is_in_it_too(app: Backstay) -> None:
    with pytest.raises(KeyNotFound):
        await app.revoke_key("nobody", by="ada")

    [record] = await app.audit_trail()
    assert (record.action, record.target, record.by, record.outcome) == ("key.revoke", "nobody", "ada", "KeyNotFound")


async def test_of_one_that_was_stopped_half_way_nobody_knows_the_end(app: Backstay) -> None:
    entered = asyncio.Event()

    async def change() -> None:
        async with app.audited("jobs.bulk_cancel", "type:mail", by="ada", via="dashboard"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(change())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [record.outcome for record in await app.audit_trail()] == [None]


async def test_a_change_is_not_made_where_its_entry_cannot_be_stored(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Any) -> None:
        raise StoreError("away")

    monkeypatch.setattr(app.store, "audit", refuse)
    with pytest.raises(StoreError, match="away"):
        async with app.audited("queue.pause", "mail", by="ada", via="http"):
            raise AssertionError("it was entered")


async def test_a_change_that_was_made_is_answered_though_its_outcome_could_not_be_stored(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_: Any) -> None:
        raise StoreError("away")

    async with app.audited("queue.pause", "mail", by="ada", via="http"):
        monkeypatch.setattr(app.store, "audit", refuse)

    assert "could not write the outcome of queue.pause" in caplog.text


async def test_the_trail_is_read_page_by_page(app: Backstay) -> None:
    for number in range(5):
        async with app.audited("queue.pause", f"q{number}", by="ada", via="http"):
            pass

    first = await app.audit_trail(limit=2)
    second = await app.audit_trail(first.next, limit=3)

    assert [record.target for record in [*first, *second]] == ["q4", "q3", "q2", "q1", "q0"]
    assert second.next is None


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 1_001}, {"limit": True}, {"after": "x"}], ids=str)
async def test_a_page_that_makes_no_sense_is_refused(app: Backstay, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        await app.audit_trail(**bad)


# Without await


def test_the_blocking_face_has_the_same(tmp_path: Path) -> None:
    with SyncBackstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        made = app.create_key("ci", ["read"])
        with app.audited("queue.pause", "mail", by="ada", via="cli") as entry:
            entry.after = {"paused": True}
        with pytest.raises(KeyNotFound):
            app.revoke_key("nobody", by="ada")

        assert app.api_keys() == [made.key]
        assert [(record.action, record.outcome) for record in app.audit_trail()] == [
            ("key.revoke", "KeyNotFound"),
            ("queue.pause", "ok"),
            ("key.create", "ok"),
        ]
        assert app.totals() == []
