"""Reuse by what the work depends on: chosen fields of the payload, and the version of the code."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from backstay import Backstay, ConfigurationError, InvalidOption, InvalidPayload


class Text(BaseModel):
    text: str
    model: str = "small"
    trace: str = Field("", alias="traceId")


async def hashes(app: Backstay, *payloads: Any) -> list[str | None]:
    return [(await app.submit("embed", each)).content_hash for each in payloads]


def declare(app: Backstay, **options: Any) -> list[str]:
    ran: list[str] = []

    @app.job("embed", **{"reuse_by": ("text", "model"), **options})
    async def embed(payload: Text) -> str:
        ran.append(payload.trace)
        return payload.text.upper()

    return ran


async def test_a_job_whose_chosen_fields_are_the_same_answers_with_the_first_ones_result(app: Backstay) -> None:
    ran = declare(app)
    async with app, app.worker():
        first = await app.submit("embed", {"text": "a", "traceId": "1"})
        assert await first.result(timeout=10) == "A"
        again = await app.submit("embed", {"text": "a", "model": "small", "traceId": "2"}, reuse=True)
        other = await app.submit("embed", {"text": "a", "model": "large", "traceId": "3"}, reuse=True)
        assert [await each.result(timeout=10) for each in (again, other)] == ["A", "A"]
        assert (await again.record()).reused_from == first.job_id
    assert ran == ["1", "3"]


async def test_another_version_of_the_code_is_other_work(make_app: Callable[..., Backstay]) -> None:
    found = []
    for version in ("", "2"):
        app = make_app()
        declare(app, code_version=version)
        async with app:
            found += await hashes(app, {"text": "a"})
    assert found[0] != found[1]


async def test_who_submits_without_the_code_computes_the_same(make_app: Callable[..., Backstay]) -> None:
    app, without_code = make_app(), make_app()
    declare(app, code_version="7")
    async with app, without_code:
        ours = await hashes(app, {"text": "é", "traceId": "1"}, {"text": "é", "model": "large"})
        theirs = await hashes(without_code, {"traceId": "2", "text": "é"}, {"model": "large", "text": "é"})
    assert ours == theirs and ours[0] != ours[1]


async def test_a_hash_of_ones_own_goes_before_the_computed_one(app: Backstay) -> None:
    declare(app)
    async with app:
        assert (await app.submit("embed", {"text": "a"}, content_hash="mine")).content_hash == "mine"


async def test_a_field_goes_by_the_name_under_which_it_is_stored(app: Backstay) -> None:
    declare(app, reuse_by=["trace"])
    async with app:
        same, other = await hashes(app, {"text": "a", "traceId": "1"}, {"text": "b", "traceId": "1"})
        [third] = await hashes(app, {"text": "a", "traceId": "2"})
    assert same == other != third


@pytest.mark.parametrize(
    ("names", "message"),
    [(["txt"], "reuse_by names txt, which its payload does not have; it has text, model, trace"), ("text", "a list")],
)
def test_a_field_that_the_payload_does_not_have_is_refused_at_once(app: Backstay, names: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare(app, reuse_by=names)


async def test_reuse_without_anything_to_compare_by_says_what_it_needs(app: Backstay) -> None:
    declare(app, reuse_by=())
    async with app:
        with pytest.raises(InvalidOption, match="reuse needs a content_hash, or a handler with reuse_by"):
            await app.submit("embed", {"text": "a"}, reuse=True)


async def test_a_payload_without_a_model_must_have_the_fields_that_it_is_known_by(
    make_app: Callable[..., Backstay],
) -> None:
    app, without_code = make_app(), make_app()

    @app.job("embed", reuse_by=["text"])
    async def embed(payload: dict[str, Any]) -> None: ...

    async with app, without_code:
        for submitter in (app, without_code):
            for payload in ({"txt": "a"}, {}):
                with pytest.raises(InvalidPayload, match="it has no text"):
                    await submitter.submit("embed", payload, reuse=True)
            assert (await submitter.submit("embed", {"text": None})).content_hash is not None
