"""Pipelines: a graph of stages that is submitted and runs as one job.

The payload, with the config of every stage, is checked before anything starts. Each stage is a child, and later stages
read what they need from it by job id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypedDict, Union, Unpack

import pydantic

from backstay import codec, limits
from backstay.context import Context
from backstay.core import dependencies, payload_schema
from backstay.core.checks import PRIORITIES, check_name
from backstay.core.dependencies import TriggerRule
from backstay.core.records import JobType
from backstay.errors import InvalidOption, InvalidPipeline
from backstay.handlers import Handler
from backstay.job import JobHandle
from backstay.options import SubmitOptions

_REFUSED = frozenset({"job_id", "parent", "depends_on", "trigger_rule", "on_dependency_failure", "stage", "connection"})


class Stage:
    """One step of a pipeline: a name, and the job type that runs it. Its config is that job's payload.

    Without `after` it follows the stage before it; with `after=()` it starts at once. `options` are submit options for
    its job.
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
        self.after: tuple[str, ...] = self.given_after or ()  # filled in with the stage before it if none was given
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
    """A handler, the name of a type that is handled elsewhere, or an object that represents a handler, such as a
    pipeline."""
    if isinstance(target, Handler | str):
        return target
    inner = getattr(target, "handler", None)
    if not isinstance(inner, Handler):
        raise InvalidPipeline(f"stage {name}: {target!r:.80} is not a handler: give one, or the name of a job type")
    return inner


def in_order(pipeline: str, stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages in an order in which each follows those that it names."""
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
                f"{pipeline}: {stage.name} comes after {unknown[0]}, which is not one of its stages; they are"
                f" {', '.join(names)}"
            )
    try:
        return [stages[place] for place in dependencies.order([(stage.name, stage.after) for stage in stages])]
    except dependencies.Cycle as cycle:
        path = " → ".join(names[place] for place in cycle.path)
        raise InvalidPipeline(f"{pipeline}: its stages wait for one another: {path}") from None


def after_of(stage: Stage, stages: Mapping[str, Stage], chosen: Collection[str]) -> list[str]:
    """Return which of the chosen stages it follows: a stage that was left out is replaced by those that it follows."""
    found: dict[str, None] = {}
    waiting = list(reversed(stage.after))
    while waiting:
        name = waiting.pop()
        if name in chosen:
            found[name] = None
        else:
            waiting += reversed(stages[name].after)
    return list(found)


# of a stage's result in the result of the pipeline; a longer one is read from the stage's job
SHOWN_RESULT_BYTES_MAX = 4 * 1024


class StageResult(TypedDict, total=False):
    """What the result of a pipeline has of a stage: its job, and its result if that is short."""

    job_id: str
    result: Any


class PipelineResult(TypedDict):
    """The result of a pipeline."""

    result_type: str
    stages: dict[str, StageResult]


class _Submits(Protocol):
    async def submit(self, job_type: Any, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[Any]: ...

    def type_of(self, job_type: str) -> Awaitable[Handler | JobType]: ...


class Pipeline:
    """A declared pipeline; see `app.pipeline`. Its root is an ordinary job of the type named after the pipeline."""

    _root: Handler[Any, PipelineResult]  # set when it is registered

    def __init__(
        self,
        app: _Submits,
        name: str,
        stages: Sequence[Stage],
        options: type[pydantic.BaseModel] | None,
        handlers: Mapping[str, Handler],
    ) -> None:
        self.name = name
        self._app = app
        self.stages = {stage.name: stage for stage in in_order(name, stages)}
        for stage in self.stages.values():
            if isinstance(stage.target, str) and stage.target in handlers:
                stage.target = handlers[stage.target]
        self._check_no_ring()
        self.model = _payload_model(name, list(self.stages.values()), options)

    def _check_no_ring(self) -> None:
        """A pipeline may be a stage of another, but not of itself."""
        waiting, seen = [*self.stages.values()], set()
        while waiting:
            stage = waiting.pop()
            if stage.job_type == self.name:
                raise InvalidPipeline(f"{self.name} is a stage of itself, through {stage.name}: it would never end")
            inner = getattr(stage.target, "pipeline", None)
            if isinstance(inner, Pipeline) and inner.name not in seen:
                seen.add(inner.name)
                waiting += inner.stages.values()

    def function(self) -> Callable[..., Any]:
        """Return the handler of the root."""

        async def run(payload: Any, ctx: Context) -> PipelineResult:
            return await self._run(payload, ctx)

        run.__annotations__ = {"payload": self.model, "ctx": Context, "return": dict}
        run.__qualname__ = run.__name__ = self.name
        return run

    def registered(self, handler: Handler) -> Pipeline:
        self._root = handler
        handler.pipeline = self  # type: ignore[attr-defined]
        return self

    @property
    def handler(self) -> Handler[Any, PipelineResult]:
        """The handler of its root."""
        return self._root

    async def submit(
        self, payload: Mapping[str, Any] | pydantic.BaseModel | None = None, **options: Unpack[SubmitOptions]
    ) -> JobHandle[PipelineResult]:
        """Start it: `{"stages": [{"stage": "PCA", "config": {…}}, …]}`, or nothing for all stages with their
        defaults."""
        await self._check_foreign(payload)
        return await self._app.submit(self.handler, {} if payload is None else payload, **options)

    async def _check_foreign(self, payload: Any) -> None:
        """Check the configs of stages whose code is not here, by the schema that their workers have announced."""
        foreign = {name: stage for name, stage in self.stages.items() if isinstance(stage.target, str)}
        if not foreign:
            return
        asked = codec.decode(self.handler.encode({} if payload is None else payload))
        for each in asked["stages"]:
            if (stage := foreign.get(each["stage"])) is not None:
                known = await self._app.type_of(stage.job_type)
                if isinstance(known, JobType):
                    payload_schema.check(stage.job_type, known.payload_schema, codec.to_json(each["config"]))

    async def _run(self, payload: Any, ctx: Context) -> PipelineResult:
        configs = {each.stage: each.config for each in payload.stages}
        jobs: dict[str, str] = {}
        for name, stage in self.stages.items():
            if name in configs:
                jobs[name] = await self._submit_stage(ctx, stage, configs, jobs)
        ended = {each.job_id: each for each in await ctx.wait_for_children(trigger_rule="all_success")}
        found: dict[str, StageResult] = {}
        for name, job_id in jobs.items():
            found[name] = {"job_id": job_id}
            record = ended[job_id].row
            if record.result_artifact is None and len(record.result or "null") <= SHOWN_RESULT_BYTES_MAX:
                found[name]["result"] = ended[job_id].result
        return {"result_type": "SUCCESS", "stages": found}

    async def _submit_stage(
        self, ctx: Context, stage: Stage, configs: Mapping[str, Any], jobs: Mapping[str, str]
    ) -> str:
        options = SubmitOptions(stage=stage.name, on_dependency_failure=stage.on_dependency_failure)
        if not isinstance(stage.target, Handler) or stage.target.priority == PRIORITIES["normal"]:
            options["priority"] = ctx.job.priority  # if its type has none of its own
        if ctx.job.tags:
            options["tags"] = ctx.job.tags
        if before := after_of(stage, self.stages, configs.keys()):
            options["depends_on"] = [jobs[name] for name in before]
            options["trigger_rule"] = stage.trigger_rule
        options.update(stage.options)  # type: ignore[typeddict-item]
        return (await ctx.submit(stage.target, configs[stage.name], key=stage.name, **options)).job_id


def _payload_model(
    name: str, stages: Sequence[Stage], options: type[pydantic.BaseModel] | None
) -> type[pydantic.BaseModel]:
    """Return the payload model of the root: the stages with their configs, and any fields that the pipeline adds."""
    if options is not None and "stages" in options.model_fields:
        raise InvalidPipeline(
            f"{name}: its options have a field `stages`, which is reserved for the pipeline: rename it"
        )
    each = [_stage_model(stage) for stage in stages]
    one: Any = each[0] if len(each) == 1 else Annotated[Union[tuple(each)], pydantic.Field(discriminator="stage")]  # noqa: UP007
    all_of_them = [{"stage": stage.name} for stage in stages]
    listed = Annotated[list[one], pydantic.Field(min_length=1), pydantic.AfterValidator(_each_once)]
    model: type[pydantic.BaseModel] = pydantic.create_model(
        f"{name} payload",
        __base__=options or _Root,
        stages=(listed, pydantic.Field(default_factory=lambda: all_of_them, validate_default=True)),
    )
    return model


class _Root(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


def _stage_model(stage: Stage) -> type[pydantic.BaseModel]:
    config: Any = stage.target.annotation if isinstance(stage.target, Handler) else Any
    named: Any = Literal[stage.name]
    model: type[pydantic.BaseModel] = pydantic.create_model(
        f"{stage.name} stage",
        __base__=_Root,
        stage=(named, ...),
        config=(config, pydantic.Field(default_factory=dict, validate_default=True)),
    )
    return model


def _each_once(stages: list[Any]) -> list[Any]:
    names = [each.stage for each in stages]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"the stage {twice[0]} appears twice")
    return stages
