"""Assertions on what was submitted."""

import pytest
from pydantic import BaseModel

from backstay import Backstay, sync
from backstay.testing import assert_not_submitted, assert_submitted


class Order(BaseModel):
    number: int
    price: float = 1.0


def register(app: Backstay) -> None:
    @app.job("bill")
    async def bill(payload: Order) -> None: ...

    @app.job("greet")
    async def greet(payload: str) -> None: ...


async def test_jobs_are_found_by_type_payload_and_fields(app: Backstay) -> None:
    register(app)
    bill = app.handlers["bill"]
    async with app:
        first = await bill.submit(Order(number=1), subject="customer:7", priority="high")
        second = await bill.submit(Order(number=2), delay=60)
        await app.submit("greet", "Ada")

        async def found(payload: object = None, **fields: object) -> list[str]:
            return [job.job_id for job in await assert_submitted(app, bill, payload, **fields)]  # type: ignore[arg-type]

        assert await found() == [first.job_id, second.job_id]
        assert await found({"number": 2}) == [second.job_id]
        assert await found(Order(number=1)) == [first.job_id]
        assert await found(lambda payload: payload["number"] > 1) == [second.job_id]
        assert await found(priority="high", subject="customer:7") == [first.job_id]
        assert await found(status="scheduled") == [second.job_id]
        assert await found(count=2) == [first.job_id, second.job_id]
        assert len(await assert_submitted(app, "greet", "Ada", count=1)) == 1
        await assert_not_submitted(app, "bill", {"number": 3})


async def test_that_a_job_of_an_unknown_type_was_not_submitted_proves_nothing(app: Backstay) -> None:
    register(app)
    async with app:
        with pytest.raises(AssertionError, match=r"unknown job type 'great' \(did you mean greet\?\)"):
            await assert_not_submitted(app, "great")
        with pytest.raises(AssertionError, match=r"unknown job type 'unheard_of' \(known: bill, greet\)"):
            await assert_not_submitted(app, "unheard_of")
        with pytest.raises(AssertionError, match=r"No handler is registered for that type \(did you mean greet\?\)"):
            await assert_submitted(app, "great")


async def test_a_type_that_another_program_handles_is_known(app: Backstay) -> None:
    other = Backstay(app.url)
    register(other)
    async with other, app:
        await assert_not_submitted(app, "greet")


async def test_a_failure_lists_what_is_there_and_how_it_differs(app: Backstay) -> None:
    register(app)
    async with app:
        handle = await app.submit("bill", {"number": 1})
        await app.submit("greet", "Ada")
        with pytest.raises(AssertionError) as failure:
            await assert_submitted(app, "bill", {"number": 2, "colour": "red"}, queue="mail")
    text = str(failure.value)
    assert text.startswith("expected at least one 'bill' with payload {'number': 2, 'colour': 'red'}, queue='mail'; 0")
    assert handle.job_id in text and "'price': 1.0" in text
    assert "payload.number is 1, not 2; payload has no 'colour'; queue is 'default', not 'mail'" in text
    assert "Other types: greet (1)" in text


async def test_a_count_is_exact(app: Backstay) -> None:
    register(app)
    async with app:
        await app.submit_many([("greet", "Ada"), ("greet", "Grace")])
        with pytest.raises(AssertionError, match="exactly 1 'greet'; 2 were submitted"):
            await assert_submitted(app, "greet", count=1)
        with pytest.raises(AssertionError, match="expected no 'greet' with payload 'Ada'; 1 was submitted"):
            await assert_not_submitted(app, "greet", "Ada")


async def test_a_field_that_a_job_has_not_is_a_mistake(app: Backstay) -> None:
    async with app:
        with pytest.raises(TypeError, match="prio"):
            await assert_submitted(app, "bill", prio=3)


def test_the_blocking_face_asserts_without_await(blocking_app: sync.Backstay) -> None:
    app = blocking_app

    @app.job("greet")
    def greet(payload: str) -> None: ...

    with app:
        greet.submit("Ada")
        assert [job.payload for job in assert_submitted(app, greet, "Ada")] == ["Ada"]
        assert_not_submitted(app, greet, "Grace")
        with pytest.raises(AssertionError, match="payload is 'Ada', not 'Grace'"):
            assert_submitted(app, greet, "Grace")
