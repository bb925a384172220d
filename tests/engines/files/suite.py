"""What every place for the files of jobs must do. `from tests.engines.files.suite import *`, with the fixtures `files`
(an open place), `again` (the same place, opened anew) and `job_id` (a job that has no files yet). A module may have a
`heavy` of its own: how large a file must be to show that it is never in memory whole."""

import asyncio
import hashlib
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from backstay.errors import StoreError
from backstay.files.local import LOG_FILE, Files, StoredFile
from backstay.limits import MIB

LARGE = bytes(range(256)) * 4096 * 5 + b"and a bit"  # more than the pieces in which a place may keep it


@pytest.fixture
def heavy() -> int:
    return 48 * MIB


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


@pytest.mark.parametrize(
    ("start", "size"), [(0, 1), (0, 10_000_000), (1_048_570, 20), (3_000_000, 2_500_000), (len(LARGE) - 3, 100)]
)
def test_a_part_of_a_file_is_read_from_any_byte(files: Files, job_id: str, start: int, size: int) -> None:
    stored = files.write(job_id, 1, "film", LARGE)
    assert files.part(stored, start, size) == LARGE[start : start + size]


def test_behind_the_end_of_a_file_there_is_nothing(files: Files, job_id: str) -> None:
    assert files.part(files.write(job_id, 1, "note", b"abc"), 3, 10) == b""
    assert files.part(files.write(job_id, 1, "empty", b""), 0, 10) == b""


@pytest.mark.parametrize("piece", [7_000, 1_048_576, 9_000_000], ids=["small", "even", "large"])
def test_what_comes_in_pieces_is_written_and_read_in_pieces(
    files: Files, again: Files, job_id: str, piece: int
) -> None:
    whole = LARGE * 2 + bytes(12 * MIB - 2 * len(LARGE))  # a multiple of every size in which a place may keep it
    stored = files.write(job_id, 1, "report", (whole[at : at + piece] for at in range(0, len(whole), piece)))
    pieces = list(again.stream(stored))

    assert b"".join(pieces) == whole
    assert max(map(len, pieces)) <= 8 * MIB
    assert (stored.size, stored.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_large_file_is_never_in_memory_whole(files: Files, job_id: str, heavy: int) -> None:
    row = bytes(64 * 1024)
    tracemalloc.start()
    try:
        stored = files.write(job_id, 1, "heavy", (row for _ in range(heavy // len(row))))
        read = sum(map(len, files.stream(stored)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (stored.size, read) == (heavy, heavy)
    assert peak < 30 * MIB < heavy


def test_a_writer_who_fails_in_the_middle_leaves_what_was_there(
    files: Files, job_id: str, left_of: Callable[[str], int]
) -> None:
    def fails() -> Iterator[bytes]:
        yield bytes(9 * MIB)
        raise ZeroDivisionError

    before = files.write(job_id, 1, "report.txt", b"before")
    left = left_of(job_id)
    with pytest.raises(ZeroDivisionError):
        files.write(job_id, 1, "report.txt", fails())

    assert files.read(before) == b"before"
    assert left_of(job_id) == left


def test_a_reader_never_gets_the_last_piece_of_what_is_not_what_was_stored(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", bytes(12 * MIB))
    files.write(job_id, 1, "report.txt", bytes(12 * MIB - 1) + b"!")
    pieces: list[int] = []

    with pytest.raises(StoreError, match="hash"):
        pieces.extend(len(piece) for piece in files.stream(stored))
    assert sum(pieces) < stored.size


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


def test_a_look_finds_nothing_wrong_where_there_is_nothing(files: Files) -> None:
    assert files.look().startswith("in ")


async def test_it_may_be_asked_from_the_event_loop_itself(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", b"here")

    async with asyncio.timeout(20):
        assert files.read(stored) == b"here"
        assert await asyncio.to_thread(files.read, stored) == b"here"


def test_what_was_read_of_a_job_leads_to_its_files_after_closing_too(files: Files, job_id: str) -> None:
    stored = files.write(job_id, 1, "report.txt", LARGE)
    files.close()
    files.close()

    assert files.read(stored) == LARGE
    assert not any(thread.name == "backstay-files" for thread in threading.enumerate())
