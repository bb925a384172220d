"""What every place for the files of jobs must do. `from tests.files.suite import *`, with the fixtures `files` (an open
place), `again` (the same place, opened anew) and `job_id` (a job that has no files yet)."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from holdfast.errors import StoreError
from holdfast.files import LOG_FILE, Files, StoredFile

LARGE = bytes(range(256)) * 4096 * 5 + b"and a bit"  # more than the pieces in which a place may keep it


def read_log(files: Files, job_id: str, step: int = 7) -> bytes | None:
    """As a reader does that follows a log: from where the last look ended."""
    found = b""
    while part := files.read_part(job_id, LOG_FILE, len(found), step):
        assert len(part) <= step
        found += part
    return None if part is None else found


@pytest.mark.parametrize("content", [b"", b"a", "schön\0".encode(), LARGE], ids=["empty", "byte", "text", "large"])
def test_what_was_written_is_read_back(files: Files, again: Files, job_id: str, content: bytes) -> None:
    stored = files.write(job_id, 1, "report.txt", content)

    assert files.read(stored) == again.read(stored) == content
    assert (stored.name, stored.size) == ("report.txt", len(content))
    assert job_id in stored.uri


def test_writing_again_replaces_the_whole(files: Files, job_id: str) -> None:
    files.write(job_id, 1, "report.txt", LARGE)
    shorter = files.write(job_id, 1, "report.txt", b"short")

    assert files.read(shorter) == b"short"


def test_attempts_do_not_touch_each_others_files(files: Files, job_id: str) -> None:
    first = files.write(job_id, 1, "report.txt", b"first")
    second = files.write(job_id, 2, "report.txt", b"second")

    assert (files.read(first), files.read(second)) == (b"first", b"second")


def test_what_was_changed_behind_its_back_is_not_handed_out(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", b"as it was")
    files.write(job_id, 1, "report.txt", b"as it is now")

    with pytest.raises(StoreError, match="hash"):
        files.read(stored)


def test_what_is_not_there_says_so(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", b"here")
    files.remove([job_id])

    with pytest.raises(StoreError, match=r"report\.txt"):
        files.read(stored)


def test_many_who_write_the_same_file_at_once_leave_one_of_them_whole(files: Files, job_id: str) -> None:
    contents = [bytes([i]) * 600_000 for i in range(6)]
    stored: list[StoredFile] = []
    threads = [
        threading.Thread(target=lambda each=each: stored.append(files.write(job_id, 1, "same", each)))
        for each in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(stored) == len(contents)
    assert sum(_readable(files, each) for each in stored) == 1


def _readable(files: Files, stored: StoredFile) -> bool:
    try:
        files.read(stored)
    except StoreError:
        return False
    return True


def test_a_log_grows_and_is_read_from_anywhere(files: Files, again: Files, job_id: str) -> None:
    assert files.read_part(job_id, LOG_FILE, 0, 10) is None
    for line in (b"one\n", b"two\n", b"three\n"):
        files.append(job_id, LOG_FILE, line, 1000)

    assert read_log(again, job_id) == b"one\ntwo\nthree\n"
    assert files.read_part(job_id, LOG_FILE, 5, 6) == b"wo\nthr"
    assert files.read_part(job_id, LOG_FILE, 14, 6) == b""
    assert files.read_part(job_id, LOG_FILE, 99, 6) == b""


def test_a_log_ends_where_its_limit_is(files: Files, job_id: str) -> None:
    for _ in range(10):
        files.append(job_id, LOG_FILE, b"0123456789", 35)

    assert read_log(files, job_id) == b"0123456789" * 4


def test_lines_that_two_add_at_once_all_arrive_whole(files: Files, again: Files, job_id: str) -> None:
    def add(place: Files, letter: bytes) -> None:
        for _ in range(50):
            place.append(job_id, LOG_FILE, letter * 9 + b"\n", 10_000)

    threads = [threading.Thread(target=add, args=each) for each in ((files, b"a"), (again, b"b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = (read_log(files, job_id, 4096) or b"").splitlines()
    assert sorted(lines) == [b"a" * 9] * 50 + [b"b" * 9] * 50


def test_removing_takes_all_of_a_job_and_nothing_else(
    files: Files, job_id: str, new_job: Callable[[], str], left_of: Callable[[str], int]
) -> None:
    other, bare = new_job(), new_job()
    for each in (job_id, other):
        files.append(each, LOG_FILE, b"line\n", 1000)
        files.write(each, 1, "report.txt", LARGE)
        files.write(each, 2, "report.txt", b"again")

    assert files.remove([job_id, bare]) == [job_id, bare]
    assert files.remove([job_id]) == [job_id]

    assert left_of(job_id) == 0 < left_of(other)
    assert files.read_part(job_id, LOG_FILE, 0, 10) is None
    assert files.read_part(other, LOG_FILE, 0, 10) == b"line\n"


async def test_it_may_be_asked_from_the_event_loop_itself(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", b"here")

    async with asyncio.timeout(20):
        assert files.read(stored) == b"here"
        assert await asyncio.to_thread(files.read, stored) == b"here"
