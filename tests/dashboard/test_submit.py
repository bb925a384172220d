"""Submitting from a form: made of the type's schema, with what is wrong beside the field that it is about."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, model_validator

from backstay import Backstay
from backstay.server.application import assemble
from tests.dashboard.paged import HERE, Page, Person, person_at
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import Staged

ORDER = {
    "payload@given": "1",
    "payload/customer": "Anna",
    "payload/amount": "12.5",
    "payload/day": "2026-11-16",
    "payload/mode": '"fast"',
    "payload/address@given": "1",
    "payload/address/street": "Main Road 1",
    "payload/address/city": "Graz",
}


async def submit(person: Person, fields: dict[str, Any], *, press: str = "submit", job_type: str = "order") -> Page:
    return await person.send("/submit", {"type": job_type, "press": press, **fields})


def beside(page: Page) -> dict[str, str]:
    """What is said to be wrong, by the id of the field."""
    found = re.findall(r'<span class="mistake" id="([^"]*)--error">.*?</svg>\s*([^<]*)</span>', page.html, re.DOTALL)
    return {name: words.strip() for name, words in found}


async def submitted(person: Person, page: Page) -> Any:
    return await person.app.get(page.url.rpartition("/")[2])


async def test_every_type_is_offered_and_leads_to_its_form(person: Person) -> None:
    page = await person.get("/submit")
    assert set(re.findall(r'href="/dashboard/submit\?type=(\w+)"', page.html)) == set(person.app.handlers)
    form = await person.get("/submit?type=order")
    for name in ("customer", "amount", "address/street", "message", "extra"):
        assert f'name="payload/{name}"' in form.html
    assert 'type="password"' in form.html
    assert (await person.get("/submit?type=nothing")).status == 404


async def test_a_filled_in_form_becomes_a_job_with_the_payload_it_says(person: Person) -> None:
    lines = {
        "payload/lines/0@row": "1",
        "payload/lines/0/sku": "a-1",
        "payload/lines/0/count": "3",
        "payload/lines/0@given": "1",
        "payload/toppings": '"olives"',
    }
    options = {"subject": "table 4", "priority": "high", "tags": "lunch, terrace", "dedup_key": "t4", "delay": "60"}
    page = await submit(person, {**ORDER, **lines, **options})
    assert "Submitted." in page.text
    job = await submitted(person, page)
    assert job.payload["lines"] == [{"sku": "a-1", "count": 3, "gift": False}]
    assert job.payload["address"] == {"street": "Main Road 1", "city": "Graz"}
    assert (job.payload["amount"], job.payload["toppings"]) == (12.5, ["olives"])
    assert (job.subject, job.priority, job.tags, job.dedup_key) == ("table 4", 75, ["lunch", "terrace"], "t4")
    assert (job.status, job.created_by) == ("scheduled", "dashboard")
    [entry] = await person.trail()
    assert (entry.action, entry.target) == ("job.submit", job.job_id)


async def test_a_key_of_some_queues_learns_nothing_of_others_from_the_form(person: Person) -> None:
    queue = (await person.app.type_of("order")).queue
    assert await submitted(person, await submit(person, {**ORDER, "queue": "elsewhere", "dedup_key": "order:7"}))
    [theirs] = [job async for job in _of_queue(person.app, "elsewhere")]
    async with person.with_key("read", "submit", queues=[queue]) as limited:
        page = await submit(limited, {**ORDER, "dedup_key": "order:7"})
        ours = (await submitted(limited, page)).job_id
        assert ours != theirs and theirs not in page.html
        again = await submit(limited, {**ORDER, "dedup_key": "order:7"})
        assert (await submitted(limited, again)).job_id == ours and theirs not in again.html
    async with person.with_key("read", "submit", queues=["elsewhere"]) as limited:
        assert (await limited.get("/submit?type=order")).status == 404
        assert (await submit(limited, {**ORDER, "queue": "elsewhere"})).status == 404


async def _of_queue(app: Backstay, queue: str) -> AsyncIterator[str]:
    for job in await app.find(queue=queue):
        yield job.job_id


async def test_what_is_wrong_stands_beside_its_field_and_nothing_is_lost(person: Person) -> None:
    page = await submit(person, {**ORDER, "payload/amount": "much", "payload/customer": "", "priority": "90"})
    assert page.status == 422
    assert beside(page) == {
        "payload-customer": "This field is required.",
        "payload-amount": "Enter a number, such as 0.5.",
    }
    assert 'value="Main Road 1"' in page.html
    assert 'value="90"' in page.html
    assert len(await person.app.find(job_type="order")) == 0


async def test_what_the_model_says_stands_beside_its_field_too(person: Person) -> None:
    page = await submit(person, {**ORDER, "payload/amount": "-1", "payload/customer": "A"})
    assert beside(page) == {
        "payload-customer": "String should have at least 2 characters.",
        "payload-amount": "Input should be greater than 0.",
    }


async def test_a_field_that_does_not_fit_is_told_at_once_with_those_that_are_blank(person: Person) -> None:
    blank = {"payload/day": "", "payload/address/city": ""}
    row = {"payload/lines/0@row": "1", "payload/lines/0@given": "1", "payload/lines/0/count": "300"}
    page = await submit(person, {**ORDER, **blank, **row, "payload/customer": "A", "delay": "soon"})
    assert beside(page) == {
        "payload-customer": "String should have at least 2 characters.",
        "payload-day": "This field is required.",
        "payload-address-city": "This field is required.",
        "payload-lines-0-sku": "This field is required.",
        "payload-lines-0-count": "Input should be less than or equal to 99.",
        "o-delay": "Enter a whole number.",
    }


class Trip(BaseModel):
    start: str
    end: str

    @model_validator(mode="before")
    @classmethod
    def leads_somewhere(cls, value: dict[str, str]) -> dict[str, str]:
        assert value["start"] != value["end"]
        return value


async def test_a_validator_that_knows_no_gaps_says_nothing_of_a_form_that_has_some(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("trip")
    async def trip(payload: Trip) -> None: ...

    async with app, person_at(app, Staged()) as person:
        page = await submit(person, {"payload@given": "1", "payload/start": "Graz"}, job_type="trip")
        assert (page.status, beside(page)) == (422, {"payload-end": "This field is required."})


async def test_an_option_that_does_not_fit_is_told_beside_it(person: Person) -> None:
    page = await submit(person, {**ORDER, "priority": "101", "delay": "soon"})
    assert beside(page).keys() == {"o-delay", "o-priority"}
    assert beside(page)["o-delay"] == "Enter a whole number."
    assert "0 to 100" in beside(page)["o-priority"]
    page = await submit(person, {**ORDER, "delay": "5", "run_at": "2027-01-01T00:00"})
    assert beside(page) == {"o-delay": "Set a run time or a delay, not both."}


async def test_rows_of_a_list_come_and_go_without_a_script(person: Person) -> None:
    one = await submit(person, ORDER, press="add payload/lines")
    assert 'name="payload/lines/0/sku"' in one.html
    assert 'value="Main Road 1"' in one.html
    rows = {
        "payload/lines/0@row": "1",
        "payload/lines/0/sku": "a",
        "payload/lines/1@row": "1",
        "payload/lines/1/sku": "b",
    }
    less = await submit(person, {**ORDER, **rows}, press="remove payload/lines/0")
    assert 'value="a"' not in less.html
    assert 'value="b"' in less.html


async def test_the_same_can_be_written_as_json_and_back(person: Person) -> None:
    page = await submit(person, ORDER, press="json")
    text = re.search(r'<textarea id="json"[^>]*>\n(.*?)</textarea>', page.html, re.DOTALL)
    assert text is not None
    assert "Main Road 1" in text[1]
    back = await submit(person, {"mode": "json", "json": '{"customer": "Ben", "amount": 3}'}, press="form")
    assert 'value="Ben"' in back.html
    wrong = await submit(person, {"mode": "json", "json": '{"customer": '})
    assert wrong.status == 422
    assert "Invalid JSON" in wrong.text
    done = await submit(person, {"mode": "json", "json": "[1, 2, 3]"}, job_type="gather")
    assert (await submitted(person, done)).payload == [1, 2, 3]


async def test_a_second_submit_with_the_same_dedup_key_is_answered_by_the_first(person: Person) -> None:
    first = await submit(person, {**ORDER, "dedup_key": "once"})
    second = await submit(person, {**ORDER, "dedup_key": "once"})
    assert "No new job: this one already exists." in second.text
    assert first.url == second.url


async def test_a_job_is_the_keys_and_goes_only_into_its_queues(person: Person) -> None:
    async with person.with_key("read", "submit", queues=["default"]) as someone:
        page = await submit(someone, ORDER)
        assert (await submitted(person, page)).created_by == "somebody"
        assert (await submit(someone, {**ORDER, "queue": "mail"})).status == 403
        assert (await submit(someone, {"mode": "json", "json": '{"to": "a"}'}, job_type="mail")).status == 404
    async with person.with_key("read") as someone:
        assert (await someone.get("/submit")).status == 403
        assert (await submit(someone, ORDER)).status == 403
    assert len(await person.app.find(job_type="order")) == 1


async def test_a_payload_that_is_a_list_is_called_so_once(person: Person) -> None:
    html = (await person.get("/submit?type=gather")).html
    assert html.count("<h2>Payload</h2>") == 1
    assert '<legend class="unseen">Payload</legend>' in html and "<legend>Payload" not in html


@pytest.fixture
async def stranger(tmp_path: Path) -> AsyncIterator[Person]:
    """At a server that has none of the code, only what a worker has announced."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    worker = Backstay(url)

    @worker.job("greet")
    async def greet(payload: dict[str, int]) -> None: ...

    @worker.job("count")
    async def count(payload: int) -> None: ...

    async with worker:
        pass
    app = Backstay(url)
    gate = assemble(app, hosts=())
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=HERE) as client:
        yield Person(app, gate, client, Staged())


async def test_types_of_remote_workers_are_submitted_by_their_announced_schema(stranger: Person) -> None:
    page = await submit(stranger, {"payload": '{"a": "x"}'}, job_type="greet")
    assert page.status == 422
    assert "is not of type 'integer'" in page.text
    done = await submit(stranger, {"payload": "41"}, job_type="count")
    assert (await submitted(stranger, done)).payload == 41
