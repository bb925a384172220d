"""backstay tree"""

from __future__ import annotations

import msgspec
import pytest

from backstay import Job, Status
from backstay.cli import tree
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


@pytest.fixture
def family(queue: Queue) -> dict[str, str]:
    """A parent with two children, a third that waits for both, and a job outside that waits for the third."""
    root = queue.submit("echo", "root")
    first = queue.submit("echo", "first", parent=root, stage="load")
    second = queue.submit("die", "second", parent=root)
    third = queue.submit("echo", "third", parent=root, depends_on=[first, second])
    after = queue.submit("other", "after", depends_on=[third])
    queue.submit("echo", "a stranger")
    return {"root": root, "first": first, "second": second, "third": third, "after": after}


def drawn(out: str) -> list[tuple[str, str]]:
    """Each line's drawing, up to the type, and its id."""
    found = []
    for line in out.splitlines()[1:]:
        id_at = line.index(" 0", 4) + 1
        found.append((line[:id_at].rstrip(), line[id_at : id_at + 36]))
    return found


@pytest.mark.parametrize("asked", ["root", "first", "third", "after"])
def test_a_job_is_shown_among_its_relatives_whichever_of_them_is_asked_for(
    cli: Cli, family: dict[str, str], asked: str
) -> None:
    ran = cli("tree", family[asked])
    star = {name: " *" if name == asked else "" for name in family}
    assert drawn(ran.out) == [
        (f"echo{star['root']}", family["root"]),
        (f"|- echo{star['first']}", family["first"]),
        (f"`- die{star['second']}", family["second"]),
        (f"   `> echo{star['third']}", family["third"]),
        (f"      `> other{star['after']}", family["after"]),
    ]
    assert "waiting       0%  load" not in ran.out
    assert "load" in ran.out.splitlines()[2]
    assert "waiting for 2 jobs" in ran.out


def test_a_terminal_gets_lines_and_arrows_and_short_ids(family: dict[str, str]) -> None:
    lines = on_a_terminal(80, "tree", family["third"])
    assert lines[1].startswith("echo ")
    assert lines[2].startswith("├─ echo ")
    assert lines[4].startswith("   └→ echo * ")
    assert family["third"][-12:] in lines[4]
    assert family["third"] not in lines[4]


def test_json_has_the_records(cli: Cli, family: dict[str, str]) -> None:
    document = cli("tree", family["third"], "--json").document
    assert document["job_id"] == family["third"]
    assert {item["job_id"] for item in document["items"]} == set(family.values())
    assert document["complete"] is True


def test_a_tree_that_is_too_large_is_shown_in_part_and_says_so(
    cli: Cli, family: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "SHOWN_MAX", 3)
    ran = cli("tree", family["third"])
    assert len(drawn(ran.out)) == 3
    assert "more than 3 jobs: list them" in ran.err
    assert f"backstay list --root {family['root']}" in ran.err
    assert cli("tree", family["third"], "--json").document["complete"] is False


def test_a_job_without_relatives_stands_alone(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    assert drawn(cli("tree", job_id).out) == [("echo *", job_id)]


def test_progress_stands_in_its_column_alone(queue: Queue) -> None:
    record = queue.job(queue.submit()).row
    record = msgspec.structs.replace(record, status=Status.PROCESSING, progress=0.5, stage="adding")
    line = tree._Line("", Job(record), False, 0)
    texts = [column.value(line) for column in tree._columns(line.job.created_at)]
    assert " ".join(texts).count("50%") == 1
    assert texts[-1] == "adding"


def test_the_tree_of_an_archived_job_says_what_it_no_longer_knows(cli: Cli, queue: Queue) -> None:
    first = queue.run()
    queue.run("echo", depends_on=[first])
    cli("purge", "--older-than", "0", "--yes")
    ran = cli("tree", first)
    assert [job_id for _, job_id in drawn(ran.out)] == [first]
    assert ran.out.splitlines()[1].endswith("archived")
    assert f"job {first} was archived: its dependencies and dependents are no longer stored" in ran.err


def test_a_job_that_went_down_with_another_names_that_one_so_that_it_can_be_told_from_others(
    cli: Cli, queue: Queue
) -> None:
    first = queue.submit(delay=3600)
    queue.submit(depends_on=[first])
    cli("cancel", first)
    for command in (["list"], ["tree", first]):
        assert f"because of …{first[-12:]}" in "\n".join(on_a_terminal(100, *command))
        assert f"because of {first}" in cli(*command).out
