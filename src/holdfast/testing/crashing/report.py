"""What came of a crash test, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHOWN_MAX = 1_000  # characters of an effect in the message of a failure

ADVICE = """\
A worker can die, or stall while another takes over, at any moment: a handler runs at least once. Make what it does
repeatable:
  * write under a key that follows from the payload, so that a second run overwrites what the first one wrote;
  * pass ctx.idempotency_key to a service that drops repeats;
  * record a step with ctx.once("name", fn): a later attempt gets its answer and does not run it again;
  * put SQL on the queue's own file into ctx.transaction(): it commits with the completion, or not at all."""

OF_STALLS = """\
Where only a stall shows it, two runs overlapped: "is it there already?" and the effect must be one step, not two."""

OF_SUBMITS = """\
Jobs that a handler submits are an effect as well: give them a dedup_key or a job_id that follows from the payload."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the job with one disturbance, and what was there afterwards."""

    disturbance: str
    effect: Any
    status: str
    error: str | None
    attempts: int
    submitted: Mapping[str, int]  # jobs that the handler submitted, by type
    reached: bool = True  # False: the handler ended before the disturbance came

    def same_as(self, other: Trial) -> bool:
        mine = (self.effect, self.status, self.submitted)
        return bool(mine == (other.effect, other.status, other.submitted))


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was tried. `expected` is the undisturbed run."""

    job_type: str
    expected: Trial
    progress_calls: int
    trials: tuple[Trial, ...]

    @property
    def different(self) -> list[Trial]:
        """The trials that left something else behind than the undisturbed run."""
        return [each for each in self.trials if not each.same_as(self.expected)]

    def __str__(self) -> str:
        lines = [f"{self.job_type}: {len(self.trials)} disturbances, {self.progress_calls} progress calls"]
        for each in self.trials:
            same = "same" if each.same_as(self.expected) else "DIFFERENT"
            missed = "" if each.reached else ", not reached"
            lines.append(f"  {same:9}  {each.disturbance} ({each.attempts} attempts{missed})")
        return "\n".join(lines)

    def complaint(self) -> str:
        different = self.different
        parts = [f"{self.job_type} does not leave the same behind whatever happens to its worker."]
        parts += [_difference(each, self.expected) for each in different]
        unharmed = [each.disturbance for each in self.trials if each not in different]
        if unharmed:
            parts.append("These made no difference:\n  " + "\n  ".join(unharmed))
        parts.append(ADVICE)
        if all(each.disturbance.startswith("stalled") for each in different):
            parts.append(OF_STALLS)
        if any(each.submitted != self.expected.submitted for each in different):
            parts.append(OF_SUBMITS)
        return "\n\n".join(parts)


def _difference(found: Trial, expected: Trial) -> str:
    lines = [found.disturbance]
    if found.effect != expected.effect:
        lines += [f"  expected effect  {_shown(expected.effect)}", f"  found            {_shown(found.effect)}"]
    if found.status != expected.status:
        lines.append(f"  the job is {found.status}, not {expected.status}: {found.error}")
    if found.submitted != expected.submitted:
        lines.append(f"  it submitted {_jobs(found.submitted)}, not {_jobs(expected.submitted)}")
    return "\n".join(lines)


def _shown(effect: Any) -> str:
    text = repr(effect)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"


def _jobs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in sorted(counts.items())) or "nothing"
