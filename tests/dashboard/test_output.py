"""The page of a job shows what its handler streams, and is told when there is more."""

from typing import Any

from backstay import Context
from backstay.dashboard import job_content, live
from tests.dashboard.paged import Person
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder


async def streamed(person: Person, *values: Any) -> str:
    app = person.app

    @app.job("tell")
    async def tell(payload: list[Any], ctx: Context) -> None:
        for value in payload:
            await ctx.stream(value)

    job = await tell.submit(list(values))
    async with app.worker(job_types=["tell"]):
        await job.wait(timeout=20)
    return job.job_id


async def test_texts_are_shown_as_they_follow_one_another_and_other_values_as_lines(person: Person) -> None:
    page = await person.get(f"/jobs/{await streamed(person, 'Once ', 'upon <b>', {'n': 1}, 'end')}")
    assert "4 entries" in page.text
    assert "Once upon &lt;b&gt;\n{&#34;n&#34;:1}\nend" in page.html


async def test_of_long_output_the_end_is_shown(person: Person, monkeypatch: Any) -> None:
    monkeypatch.setattr(job_content, "STREAMED_MAX", 2)
    page = await person.get(f"/jobs/{await streamed(person, 'one,', 'two,', 'three')}")
    assert "3 entries, the last are shown" in page.text
    assert "two,three" in page.text
    assert "one,two" not in page.text


async def test_a_page_without_output_has_no_such_card_and_more_of_it_is_a_change(person: Person) -> None:
    job_id = person.staged["running"]
    assert 'aria-label="Output"' not in (await person.get(f"/jobs/{job_id}")).html
    before = await live._of_job(person.app, job_id)
    told = await streamed(person, "a")
    assert before == await live._of_job(person.app, job_id)
    assert (await live._of_job(person.app, told))[-1] is not None  # type: ignore[index]
