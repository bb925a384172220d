"""The order in which jobs run again."""

import pytest

from backstay.core.records import Node
from backstay.core.states import Status
from backstay.errors import IllegalTransition
from backstay.ops.tree import levels


def node(name: str, *dependencies: str, dependents: tuple[str, ...] = ()) -> Node:
    return Node(
        job_id=name,
        job_type="work",
        queue="default",
        priority=50,
        status=Status.COMPLETED,
        attempt=1,
        version=3,
        parent_job_id=None,
        job_stage=name,
        children=0,
        open_children=0,
        dependencies=dependencies,
        dependent_jobs=dependents,
    )


def names(*given: Node) -> list[list[str]]:
    return [sorted(each.job_id for each in level) for level in levels({each.job_id: each for each in given})]


def test_nobody_runs_again_before_what_it_depends_on() -> None:
    found = names(node("d", "b", "c"), node("c", "a"), node("b", "a", "elsewhere"), node("a"), node("e"))
    assert found == [["a", "e"], ["b", "c"], ["d"]]


def test_an_edge_that_only_its_other_end_lists_counts() -> None:
    assert names(node("b"), node("a", dependents=("b", "elsewhere"))) == [["a"], ["b"]]


def test_nothing_has_no_levels_and_a_ring_is_named() -> None:
    assert names() == []
    with pytest.raises(IllegalTransition, match=r"these jobs wait for one another: a \(a\) → b \(b\) → a \(a\)"):
        names(node("a", "b"), node("b", "a"))
