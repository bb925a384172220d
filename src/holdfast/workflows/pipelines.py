"""Pipelines: a graph of stages as one job. Its payload is checked, with the config of every stage, before anything
starts; each stage is a child, and the next reads what it needs of it by its job id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, Union, Unpack

import pydantic

from holdfast import codec, schemas
from holdfast.checks import PRIORITIES
from holdfast.context import Context
from holdfast.errors import InvalidPipeline
from holdfast.handlers import Handler
from holdfast.job import JobHandle
from holdfast.store.types import JobType
from holdfast.submission import SubmitOptions
from holdfast.workflows.stages import Stage, after_of, in_order

SHOWN_RESULT_BYTES_MAX = 4 * 1024  # of a stage, in the result of the whole; a longer one is read from the stage's job


class _Submits(Protocol):
    def submit(
        self, job_type: str | Handler, payload: Any = None, **options: Unpack[SubmitOptions]
    ) -> Awaitable[JobHandle]: ...

    def _target(self, job_type: str | Handler) -> Awaitable[Handler | JobType]: ...


class Pipeline:
    """A declared pipeline; see `app.pipeline`. Its root is a job like any other, of the type that it is named after."""

    handler: Handler  # of the root; set when it is registered

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
                raise InvalidPipeline(f"{self.name} is a stage of itself, by way of {stage.name}: it would never end")
            inner = getattr(stage.target, "pipeline", None)
            if isinstance(inner, Pipeline) and inner.name not in seen:
                seen.add(inner.name)
                waiting += inner.stages.values()

    def function(self) -> Callable[..., Any]:
        """The handler of the root."""

        async def run(payload: Any, ctx: Context) -> dict[str, Any]:
            return await self._run(payload, ctx)

        run.__annotations__ = {"payload": self.model, "ctx": Context, "return": dict}
        run.__qualname__ = run.__name__ = self.name
        return run

    def registered(self, handler: Handler) -> Pipeline:
        self.handler = handler
        handler.pipeline = self  # type: ignore[attr-defined]
        return self

    async def submit(self, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        """Start it: `{"stages": [{"stage": "PCA", "config": {…}}, …]}`, or nothing for all stages as they are."""
        await self._check_foreign(payload)
        return await self._app.submit(self.handler, {} if payload is None else payload, **options)

    async def _check_foreign(self, payload: Any) -> None:
        """Configs of stages whose code is not here: by the schema that their workers have announced."""
        foreign = {name: stage for name, stage in self.stages.items() if isinstance(stage.target, str)}
        if not foreign:
            return
        asked = codec.decode(self.handler.encode({} if payload is None else payload))
        for each in asked["stages"]:
            if (stage := foreign.get(each["stage"])) is not None:
                known = await self._app._target(stage.job_type)
                if isinstance(known, JobType):
                    schemas.check(stage.job_type, known.payload_schema, codec.to_json(each["config"]))

    async def _run(self, payload: Any, ctx: Context) -> dict[str, Any]:
        configs = {each.stage: each.config for each in payload.stages}
        jobs: dict[str, str] = {}
        for name, stage in self.stages.items():
            if name in configs:
                jobs[name] = await self._submit_stage(ctx, stage, configs, jobs)
        ended = {each.job_id: each for each in await ctx.wait_for_children(trigger_rule="all_success")}
        found: dict[str, Any] = {}
        for name, job_id in jobs.items():
            found[name] = {"job_id": job_id}
            record = ended[job_id].record
            if record.result_artifact is None and len(record.result or "null") <= SHOWN_RESULT_BYTES_MAX:
                found[name]["result"] = ended[job_id].result
        return {"result_type": "SUCCESS", "stages": found}

    async def _submit_stage(
        self, ctx: Context, stage: Stage, configs: Mapping[str, Any], jobs: Mapping[str, str]
    ) -> str:
        options = SubmitOptions(stage=stage.name, on_dependency_failure=stage.on_dependency_failure)
        if not isinstance(stage.target, Handler) or stage.target.priority == PRIORITIES["normal"]:
            options["priority"] = ctx.job.priority  # where its type has none of its own
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
    """What the root takes: the stages with the config of each, and whatever fields the pipeline adds."""
    if options is not None and "stages" in options.model_fields:
        raise InvalidPipeline(f"{name}: its options have a field `stages`, which is the pipeline's own: rename it")
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
        raise ValueError(f"the stage {twice[0]} is there twice")
    return stages
