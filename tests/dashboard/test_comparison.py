"""The newest report of a subject on its page, and two of its runs side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from backstay import Backstay, Context, ResultRow
from backstay.dashboard import comparison
from backstay.testing import drain
from tests.dashboard.paged import Page, Person, person_at
from tests.dashboard.staged import Staged

SUBJECT = "room 9"


class Config(BaseModel):
    components: int = 2
    model: str = "small"
    token: str = Field("canary-1234", json_schema_extra={"sensitive": True})


class Place(ResultRow, table="places", key="number"):
    number: int
    x: float
    group: str


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[Person]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", artifacts=f"file://{tmp_path}/files")

    @app.job("run")
    async def run(payload: Config, ctx: Context) -> dict[str, Any]:
        first = await ctx.submit("place", payload.model_dump(), stage="PCA", key="pca")
        await ctx.submit("report", {"model": payload.model}, stage="REPORT", key="report", depends_on=[first])
        children = await ctx.wait_for_children()
        return {"stages": {str(job.job_stage): {"result": job.result} for job in children}, "all": 2}

    @app.job("place", results=[Place])
    async def place(payload: Config, ctx: Context) -> dict[str, Any]:
        rows = [
            Place(number=number, x=number * payload.components if number == 3 else number, group="a")
            for number in range(4 + payload.components)
        ]
        await ctx.results(Place).put(rows)
        await ctx.metric("votes", 240)
        return {"groups": [{"size": 3}, {"size": payload.components}], "method": "randomized", "id": ctx.job_id}

    @app.job("report")
    async def report(payload: dict[str, str], ctx: Context) -> None:
        await ctx.artifact("plot.html", "<p>plot</p>")
        await ctx.artifact("report.html", f"<h1>{payload['model']}</h1>")

    async with app, person_at(app, Staged()) as found:
        yield found


async def ran(person: Person, **config: Any) -> str:
    job = await person.app.submit("run", config, subject=SUBJECT)
    await drain(person.app)
    assert (await person.app.get(job.job_id)).status == "completed"
    return job.job_id


async def compared(person: Person, **sides: str) -> Page:
    query = "".join(f"&{side}={job_id}" for side, job_id in sides.items())
    return await person.get(f"/subjects/compare?subject={SUBJECT}{query}")


async def test_the_newest_report_is_on_the_page_of_its_subject_even_if_a_child_wrote_it(person: Person) -> None:
    assert "Newest report" not in (await person.get(f"/subjects?subject={SUBJECT}")).text
    await ran(person)
    root = await ran(person, model="large")
    [report] = [job for job in await person.app.find(root=root) if job.job_type == "report"]

    page = await person.get(f"/subjects?subject={SUBJECT}")

    assert "Newest report" in page.text
    assert f'<iframe src="/dashboard/jobs/{report.job_id}/artifacts/report.html"' in page.html
    assert page.html.count("<iframe") == 1
    assert "sandbox" in page.html.partition("<iframe")[2].partition(">")[0]


async def test_two_runs_show_what_differs_in_configuration_figures_and_rows(person: Person) -> None:
    left, right = await ran(person), await ran(person, components=4, model="large")

    text = (await compared(person, left=left, right=right)).text

    assert text.count("Configuration") == 3  # of the run and its two stages
    assert "components 2 4 (+2)" in text
    assert "model small large" in text
    assert text.count("groups[1].size 2 4 (+2)") == 1  # of its stage, which the pipeline repeats
    assert "votes" not in text and "randomized" not in text  # the same on both sides
    assert left not in text and right not in text  # an id in a result is not a figure
    assert "6 rows left, 8 rows right: 5 the same, 1 different." in text
    assert "2 rows only right: 6, 7" in text and "only left" not in text
    assert "3 x 6 12" in text


async def test_without_a_choice_the_last_two_runs_are_compared(person: Person) -> None:
    await ran(person, components=1)
    await ran(person, components=2)
    await ran(person, components=3)

    assert "components 2 3 (+1)" in (await compared(person)).text
    assert (
        f"/subjects/compare?subject={SUBJECT.replace(' ', '+')}"
        in (await person.get(f"/subjects?subject={SUBJECT}")).html
    )


async def test_secrets_stay_masked(person: Person) -> None:
    left, right = await ran(person), await ran(person, token="canary-5678")

    assert "canary" not in (await compared(person, left=left, right=right)).html


async def test_there_is_nothing_to_compare_with_fewer_than_two_runs(person: Person) -> None:
    assert "not two completed runs" in (await compared(person)).text
    run = await ran(person)
    assert "Compare runs" not in (await person.get(f"/subjects?subject={SUBJECT}")).text
    assert "not two completed runs" in (await compared(person)).text
    await ran(person)
    assert "Choose two different runs" in (await compared(person, left=run, right=run)).text


async def test_a_run_about_something_else_cannot_be_compared(person: Person) -> None:
    run = await ran(person)
    other = await person.app.submit("run", {}, subject="room 10")
    await drain(person.app)

    assert (await compared(person, left=run, right=other.job_id)).status == 404


async def test_runs_of_other_queues_are_not_compared(person: Person) -> None:
    left, right = await ran(person), await ran(person, components=4)
    async with person.with_key("read", queues=["mail"]) as someone:
        assert (await compared(someone, left=left, right=right)).status == 404
        assert "components" not in (await compared(someone)).text


async def test_of_many_rows_the_first_are_compared_and_the_page_says_so(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "ROWS_MAX", 4)
    monkeypatch.setattr(comparison, "ROWS_PART", 2)
    left, right = await ran(person), await ran(person, components=4)

    text = (await compared(person, left=left, right=right)).text

    assert "4 rows left, 4 rows right (only the first are compared): 3 the same, 1 different." in text
    assert "only right" not in text


def test_a_document_is_compared_by_its_single_values() -> None:
    found = comparison.leaves({"a": {"b": 1}, "list": [1, 2], "objects": [{"c": None}], "empty": {}})

    assert found == {"a.b": 1, "list": [1, 2], "objects[0].c": None, "empty": {}}
    assert comparison.leaves(5) == {"value": 5}
    assert len(comparison.leaves({str(n): n for n in range(1_000)})) == comparison.LEAVES_MAX
