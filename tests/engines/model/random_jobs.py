"""Jobs, outcomes and policies, drawn at random."""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
)
from backstay.core.records import FOREVER, Keep, NewJob, RetentionPolicy
from backstay.testing.conformance.factories import SECOND, a_policy, an_error, new_job

CONCURRENCY_LIMITS = {"c1": 1, "c2": 2}
T = TypeVar("T")


def lately(draw: Random, found: Sequence[T]) -> T:
    """Mostly one of the last; some come back to what is long past."""
    return draw.choice(found[-3:]) if draw.random() < 0.7 else draw.choice(found)


def common(draw: Random) -> dict[str, Any]:
    return {
        "job_type": draw.choice("ab"),
        "queue": draw.choice("xy"),
        "priority": draw.choice((10, 50, 90)),
        "payload": draw.choice("12"),
        "max_attempts": draw.randint(1, 3),
        "on_dependency_failure": draw.choice(("cancel", "fail")),
    }


def job(draw: Random, now: int, known: Sequence[str]) -> NewJob:
    """With none, one or several of the things that make an insert special."""
    fields = common(draw) | {"scheduled_for": now + draw.choice((0, 0, 25 * SECOND))}
    often = draw.choice((0.0, 0.2, 0.5))
    if draw.random() < often:
        fields["dedup_key"] = draw.choice(("k1", "k1", "k2"))
        fields["dedup_conflict_is_error"] = draw.random() < 0.3
        fields["dedup_until"] = draw.choice((None, now + 30 * SECOND, FOREVER))
    if draw.random() < often:
        fields["content_hash"] = draw.choice(("h1", "h1", "h2"))
        if draw.random() < 0.8:
            fields["reuse_since"] = max(0, now - draw.choice((0, 60 * SECOND, FOREVER)))
    if draw.random() < often:
        key = draw.choice(("c1", "c2"))
        fields |= {"concurrency_key": key, "concurrency_limit": CONCURRENCY_LIMITS[key]}
    if known and draw.random() < often:
        fields["depends_on"] = tuple(draw.choices(known, k=draw.randint(1, 3)))
        fields["trigger_rule"] = draw.choice(tuple(TriggerRule)).value
    if known and draw.random() < often:
        fields["parent_job_id"] = draw.choice(known)
    if draw.random() < often:
        fields["own_id"] = True
        if known and draw.random() < 0.5:
            fields["job_id"] = draw.choice(known)
    return new_job(**fields)


def children(draw: Random, now: int, parent: str, known: Sequence[str]) -> tuple[NewJob, ...]:
    """As a handler makes them: with ids of their own, which a second run may make again; some depend on others."""
    made: list[NewJob] = []
    foreign = [job_id for job_id in known if job_id != parent]
    for _ in range(draw.randint(0, 3)):
        drawn = job(draw, now, [*foreign, *(each.job_id for each in made)])
        changes = {"parent_job_id": parent, "own_id": True, "special": True, "dedup_key": None, "dedup_until": None}
        made.append(msgspec.structs.replace(drawn, **changes))
    if draw.random() < 0.05:
        made.append(new_job(parent_job_id=parent, own_id=True, depends_on=(new_job().job_id,)))
    return tuple(made)


def outcome(draw: Random) -> Outcome:
    return draw.choice(
        (
            Completed(draw.choice(("1", "null", '{"a":"snö"}'))),
            Completed("2"),
            Completed("3"),
            Raised(an_error()),
            RetryAsked(an_error("Again", "later"), draw.choice((0, 10 * SECOND))),
            Snoozed(draw.choice((0, 20 * SECOND))),
            GivenBack("stopping"),
            Discarded(an_error("Poison", "never")),
            Cancelled("no need"),
            waiting(draw),
        )
    )


def waiting(draw: Random) -> WaitingForChildren:
    rules = (TriggerRule.ALL_DONE, TriggerRule.ALL_SUCCESS, TriggerRule.NONE_FAILED)
    return WaitingForChildren(Awaits(draw.choice(rules), draw.choice(("fail", "cancel"))))


def policy(draw: Random) -> RetentionPolicy:
    spans = [draw.choice((0, 0, 40 * SECOND, None)) for _ in range(3)]
    return a_policy(
        *spans,
        by_type=draw.choice((None, None, {"a": Keep(None, None, None)}, {"b": Keep(0, 0, 0)})),
        archive=draw.choice((None, None, 0, 60 * SECOND)),
        job_types=draw.choice(((), (), ("a",), ("b",))),
    )
