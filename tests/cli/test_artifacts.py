"""backstay artifacts"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal

BINARY = bytes(range(256))


def kept(queue: Queue) -> str:
    """A job with a text and something that is none."""
    return queue.run("keep", {"letter.txt": "Dear Ada,\n\x1b[2Jhow are you?", "picture": list(BINARY)})


def test_the_files_of_a_job_are_listed_with_their_size_and_place(cli: Cli, queue: Queue) -> None:
    job_id = kept(queue)
    header, *rows = cli("artifacts", job_id).out.splitlines()
    assert header.split() == ["NAME", "BYTES", "SHA-256", "LOCATION"]
    assert [row.split()[:2] for row in rows] == [["letter.txt", "26"], ["picture", "256"]]
    assert all(job_id in row for row in rows)
    document = cli("artifacts", job_id[-12:], "--json").document
    assert [(each["name"], each["size"]) for each in document["items"]] == [("letter.txt", 26), ("picture", 256)]


def test_a_file_comes_out_byte_for_byte(queue: Queue, folder: Path) -> None:
    job_id = kept(queue)
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "artifacts", job_id, "picture"], cwd=folder, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (BINARY, b"")


def test_on_a_terminal_only_text_is_shown_and_nothing_in_it_is_obeyed(queue: Queue) -> None:
    job_id = kept(queue)
    assert on_a_terminal(80, "artifacts", job_id, "letter.txt") == ["Dear Ada,", "\\x1b[2Jhow are you?", ""]
    assert "-o picture" in "".join(on_a_terminal(80, "artifacts", job_id, "picture", code=2))


def test_what_is_not_there_is_not_found(cli: Cli, queue: Queue) -> None:
    job_id = queue.run()
    ran = cli("artifacts", job_id)
    assert (ran.code, ran.out) == (0, "")
    assert "has no artifacts" in ran.err
    ran = cli("artifacts", job_id, "letter.txt")
    assert (ran.code, ran.out) == (5, "")
    assert "letter.txt" in ran.err
