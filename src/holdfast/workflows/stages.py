"""The stages of a pipeline: what each is, and after which others it comes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast import limits, trees
from holdfast.checks import check_name
from holdfast.errors import InvalidOption, InvalidPipeline
from holdfast.handlers import Handler
from holdfast.submission import SubmitOptions
from holdfast.trees import TriggerRule

_REFUSED = frozenset({"job_id", "parent", "depends_on", "trigger_rule", "on_dependency_failure", "stage", "connection"})


class Stage:
    """One step of a pipeline: a name, and the job type that does it. Its config is that job's payload.

    Without `after` it comes after the stage before it; `after=()`: at once. `options` are those of submit, for its job.
    """

    def __init__(
        self,
        name: str,
        target: Any,
        *,
        after: str | Sequence[str] | None = None,
        trigger_rule: str = "all_success",
        on_dependency_failure: str = "cancel",
        **options: Any,
    ) -> None:
        self.name = check_name(name, "stage")
        self.target = _target(name, target)
        self.given_after = None if after is None else (after,) if isinstance(after, str) else tuple(after)
        self.after: tuple[str, ...] = self.given_after or ()  # of the stage before it, where none was given
        if trigger_rule not in tuple(TriggerRule):
            raise InvalidOption(f"stage {name}: trigger_rule={trigger_rule!r}: use {', '.join(TriggerRule)}")
        if on_dependency_failure not in ("cancel", "fail"):
            raise InvalidOption(f"stage {name}: on_dependency_failure={on_dependency_failure!r}: use cancel or fail")
        self.trigger_rule, self.on_dependency_failure = trigger_rule, on_dependency_failure
        if unknown := options.keys() - (SubmitOptions.__annotations__.keys() - _REFUSED):
            raise InvalidOption(f"stage {name} has no option {', '.join(sorted(unknown))}")
        self.options = options

    @property
    def job_type(self) -> str:
        return self.target.name if isinstance(self.target, Handler) else self.target

    def __repr__(self) -> str:
        return f"<Stage {self.name} ({self.job_type}) after {', '.join(self.after) or 'nothing'}>"


def _target(name: str, target: Any) -> Handler | str:
    """A handler, the name of a type that is handled elsewhere, or what stands for a handler: another pipeline."""
    if isinstance(target, Handler | str):
        return target
    inner = getattr(target, "handler", None)
    if not isinstance(inner, Handler):
        raise InvalidPipeline(f"stage {name}: {target!r:.80} is no handler: give one, or the name of a job type")
    return inner


def in_order(pipeline: str, stages: Sequence[Stage]) -> list[Stage]:
    """The stages such that each comes after those that it names."""
    if not stages:
        raise InvalidPipeline(f"{pipeline} has no stage: give at least one Stage(name, handler)")
    if len(stages) > limits.STAGES_MAX:
        raise InvalidPipeline(f"{pipeline} has {len(stages):,} stages; the limit is {limits.STAGES_MAX:,} (STAGES_MAX)")
    names = [stage.name for stage in stages]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InvalidPipeline(f"{pipeline} has the stage {twice[0]} twice: give each its own name")
    for before, stage in zip((None, *stages), stages, strict=False):
        if stage.given_after is None:
            stage.after = () if before is None else (before.name,)
        if unknown := [name for name in stage.after if name not in names]:
            raise InvalidPipeline(
                f"{pipeline}: {stage.name} comes after {unknown[0]}, which is no stage of it; there are"
                f" {', '.join(names)}"
            )
    try:
        return [stages[place] for place in trees.order([(stage.name, stage.after) for stage in stages])]
    except trees.Cycle as cycle:
        path = " → ".join(names[place] for place in cycle.path)
        raise InvalidPipeline(f"{pipeline}: its stages wait for one another: {path}") from None


def after_of(stage: Stage, stages: Mapping[str, Stage], chosen: Collection[str]) -> list[str]:
    """After which of the chosen ones it comes: one that was left out stands for those that it comes after."""
    found: dict[str, None] = {}
    waiting = list(reversed(stage.after))
    while waiting:
        name = waiting.pop()
        if name in chosen:
            found[name] = None
        else:
            waiting += reversed(stages[name].after)
    return list(found)
