"""What is around a job: history, log, tree, explanation, rows and files."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Context, ResultRow, limits
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import FILM, PAGE, Stage, staged


async def done(stage: Stage) -> str:
    """The path of a job that has completed, with rows and files."""
    job = await stage.submit("report", payload=1)
    await stage.run()
    return f"/jobs/{job['job_id']}"


async def test_history_says_what_happened_and_by_whom(stage: Stage) -> None:
    history = await stage.get(f"{await done(stage)}/history")
    assert [event["event"] for event in history["items"]] == ["submit", "claim", "complete"]
    assert history["items"][0]["by"] == "local"
    assert history["dropped"] == 0


async def test_history_counts_what_was_dropped(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    for n in range(300):
        await stage.app.reprioritise(job["job_id"], n % 100)
    history = await stage.get(f"/jobs/{job['job_id']}/history")
    assert len(history["items"]) + history["dropped"] == 301
    assert history["dropped"] > 0


async def test_the_log_comes_as_its_last_lines_or_in_full(stage: Stage) -> None:
    path = await done(stage)
    logs = await stage.get(f"{path}/logs")
    assert [entry["message"] for entry in logs["entries"]] == ["begun"]
    full = await stage.ask("GET", f"{path}/logs", params={"full": "true"})
    assert full.headers["content-type"] == "text/plain; charset=utf-8"
    assert full.text.endswith("begun\n")


async def test_a_tree_lists_each_job_before_its_children(stage: Stage) -> None:
    parent = await stage.submit("parent", payload=3)
    await stage.run()
    tree = await stage.get(f"/jobs/{parent['job_id']}/tree")
    assert [job["parent_job_id"] for job in tree["items"]] == [None] + [parent["job_id"]] * 3
    assert tree["complete"] is True
    assert "payload" not in tree["items"][0]


async def test_a_path_with_a_malformed_id_says_so(stage: Stage) -> None:
    answer = await stage.http.get("/jobs/zzz/explain")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "'zzz' is not a job id: ids are UUIDs"
    assert "no such path" in (await stage.http.get("/jobs/zzz/nothing")).json()["detail"]


async def test_it_explains_why_a_job_is_not_running(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    found = await stage.get(f"/jobs/{job['job_id']}/explain")
    assert (found["reason"], found["status"]) == ("no_worker", "pending")
    assert "no worker is alive" in found["explanation"]


# Rows


async def test_rows_are_read_by_page_by_subject_and_by_key(stage: Stage) -> None:
    path = await done(stage)
    assert (await stage.get(f"{path}/results"))["items"] == ["comments"]
    first = await stage.get(f"{path}/results/comments", limit=3)
    rest = await stage.get(f"{path}/results/comments", limit=3, after=first["next"])
    assert [row["comment_id"] for row in first["items"] + rest["items"]] == [0, 1, 2, 3, 4]
    assert rest["next"] is None
    of_b = await stage.get(f"{path}/results/comments", subject="b")
    assert [row["comment_id"] for row in of_b["items"]] == [1, 3]
    row = await stage.get(f"{path}/results/comments/3")
    assert (row["comment_id"], row["text"], row["conversation"]) == (3, "<b>3</b>", "b")


class Line(ResultRow, table="lines", key="line", subject="book"):
    line: str
    book: str


@pytest.mark.parametrize("by", [{}, {"subject": "\x01" * 900}], ids=["all", "of a subject"])
async def test_pages_go_on_behind_the_longest_key(tmp_path: Path, by: dict[str, str]) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    lines = [f"{number}".ljust(limits.RESULT_KEY_BYTES_MAX, "\x02") for number in range(3)]

    @app.job("read", results=[Line])
    async def read(payload: Any, ctx: Context) -> None:
        await ctx.results(Line).put(Line(line=each, book="\x01" * 900) for each in lines)

    async with staged(app) as stage:
        job = await stage.submit("read")
        await stage.run()
        found, after = [], {}
        for _ in lines:
            page = await stage.get(f"/jobs/{job['job_id']}/results/lines", limit=1, **by, **after)
            found += [row["line"] for row in page["items"]]
            after = {"after": page["next"]}
    assert sorted(found) == lines


async def test_rows_that_are_not_there(stage: Stage) -> None:
    path = await done(stage)
    waiting = await stage.submit("report", payload=2)
    for tail, status, slug in [
        ("results/nothing", 404, "unknown-table"),
        ("results/comments/99", 404, "row-not-found"),
        ("results/comments/seven", 422, "invalid-row"),
        ("results/comments/1/2", 422, "invalid-row"),
    ]:
        answer = await stage.ask("GET", f"{path}/{tail}")
        assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}"), tail
    assert (await stage.ask("GET", f"{path}/results/comments", params={"after": "x"})).status_code == 422
    assert (await stage.get(f"/jobs/{waiting['job_id']}/results/comments"))["items"] == []


# Files


async def test_files_are_listed_with_size_and_hash(stage: Stage) -> None:
    items = (await stage.get(f"{await done(stage)}/artifacts"))["items"]
    assert {item["name"]: item["size"] for item in items} == {
        "report.html": len(PAGE),
        "film.bin": len(FILM),
        "notes.txt": 6,
    }
    assert next(item["sha256"] for item in items if item["name"] == "film.bin") == hashlib.sha256(FILM).hexdigest()


@pytest.mark.parametrize(
    ("name", "media_type", "disposition"),
    [
        ("report.html", "text/html; charset=utf-8", "inline"),
        ("notes.txt", "text/plain; charset=utf-8", "inline"),
        ("film.bin", "application/octet-stream", "attachment"),
    ],
)
async def test_a_file_is_streamed_as_what_cannot_harm(
    stage: Stage, name: str, media_type: str, disposition: str
) -> None:
    path = f"{await done(stage)}/artifacts/{name}"
    answer = await stage.ask("GET", path)
    assert answer.status_code == 200
    assert answer.content == {"report.html": PAGE, "notes.txt": "schön".encode(), "film.bin": FILM}[name]
    assert answer.headers["content-type"] == media_type
    assert answer.headers["content-disposition"] == f'{disposition}; filename="{name}"'
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "sandbox"
    assert {"default-src 'none'", "frame-ancestors 'self'"} <= set(policy)
    assert not any("script" in each for each in policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    saved = await stage.ask("GET", path, params={"download": "true"})
    assert saved.headers["content-disposition"].startswith("attachment")


async def test_a_file_is_not_sent_again_to_who_has_it(stage: Stage) -> None:
    path = f"{await done(stage)}/artifacts/film.bin"
    tag = (await stage.ask("GET", path)).headers["etag"]
    assert tag == f'"{hashlib.sha256(FILM).hexdigest()}"'
    again = await stage.ask("GET", path, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert (await stage.ask("GET", path, headers={"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=10000-", 10_000, len(FILM)),
        ("bytes=-40", len(FILM) - 40, len(FILM)),
        ("bytes=10000-99999999", 10_000, len(FILM)),
        ("bytes=-99999999", 0, len(FILM)),
    ],
)
async def test_a_part_of_a_file_is_sent(stage: Stage, asked: str, start: int, stop: int) -> None:
    answer = await stage.ask("GET", f"{await done(stage)}/artifacts/film.bin", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, FILM[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(FILM)}"
    assert answer.headers["content-length"] == str(stop - start)


@pytest.mark.parametrize("asked", ["bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=-", "bytes=a-b", "bytes=٣-٤"])
async def test_what_is_no_range_is_answered_with_the_whole(stage: Stage, asked: str) -> None:
    answer = await stage.ask("GET", f"{await done(stage)}/artifacts/film.bin", headers={"Range": asked.encode()})
    assert (answer.status_code, answer.content) == (200, FILM)


async def test_a_range_behind_the_end_is_refused_with_the_size(stage: Stage) -> None:
    path = f"{await done(stage)}/artifacts/film.bin"
    for asked in (f"bytes={len(FILM)}-", "bytes=-0"):
        answer = await stage.ask("GET", path, headers={"Range": asked})
        assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(FILM)}"), asked


async def test_a_range_of_another_version_is_answered_with_the_whole(stage: Stage) -> None:
    path = f"{await done(stage)}/artifacts/film.bin"
    tag = (await stage.ask("GET", path)).headers["etag"]
    old = await stage.ask("GET", path, headers={"Range": "bytes=0-9", "If-Range": '"old"'})
    same = await stage.ask("GET", path, headers={"Range": "bytes=0-9", "If-Range": tag})
    assert (old.status_code, same.status_code) == (200, 206)


async def test_the_head_of_a_file_has_its_length_and_no_body(stage: Stage) -> None:
    answer = await stage.http.head(f"{await done(stage)}/artifacts/film.bin")
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, str(len(FILM)), b"")


async def test_a_file_that_is_gone_from_its_place_is_a_problem_not_half_an_answer(stage: Stage) -> None:
    path = await done(stage)
    await stage.app.artifacts(path.rpartition("/")[2])
    assert stage.app._files is not None
    stage.app._files.remove([path.rpartition("/")[2]])
    for headers in ({}, {"Range": "bytes=0-9"}):
        answer = await stage.ask("GET", f"{path}/artifacts/film.bin", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")


@pytest.mark.parametrize("name", ["nothing.txt", "..%2f..%2fjobs.db", "%2e%2e", ".hidden", "a%00b", "x" * 200])
async def test_no_name_leads_out_of_the_files_of_a_job(stage: Stage, name: str) -> None:
    answer = await stage.http.get(f"{await done(stage)}/artifacts/{name}")
    assert answer.status_code in (404, 422)
