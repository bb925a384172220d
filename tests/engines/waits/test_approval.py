"""An approval with a sleep of three days and an event has one effect each, wherever its workers are killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaigns.approval import approvals, complaints, trial, urls_of


@pytest.fixture
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URLs of fresh queues on an engine."""
    server = None if request.param == "sqlite" else request.getfixturevalue(request.param)
    return urls_of(request.param, server, tmp_path)


# In the gate, a process dies after these commits; `scripts/campaign approvals` kills it at every failpoint.
AFTER = {
    ("ask", "record_step.committed"),
    ("send", "send.committed"),
    ("send", "apply.committed"),
    ("ship", "record_step.committed"),
}
FIRST = {("send", "send.committed")}


@pytest.mark.parametrize(
    ("urls", "after"), [("sqlite", AFTER), ("postgres", FIRST), ("dynamodb", FIRST)], indirect=["urls"]
)
def test_an_approval_that_is_killed_has_each_effect_once(
    urls: Iterator[str], after: set[tuple[str, str]], tmp_path: Path
) -> None:
    found = approvals(urls, tmp_path, after)

    assert found.wrong == []
    assert found.kills == len(after)


@pytest.mark.parametrize("urls", ["sqlite"], indirect=True)
def test_the_judge_sees_what_is_wrong(urls: Iterator[str], tmp_path: Path) -> None:
    whole = trial(next(urls), tmp_path / "whole/outside")
    assert list(complaints(whole)) == []
    for change in ({"status": "failed"}, {"effects": ["reserve-7"]}, {"steps": ["reserve"]}, {"failures": 2}):
        assert len(list(complaints(replace(whole, **change)))) == 1
