"""Parents in child processes: they must stand at the top level of a module."""

from collections.abc import Callable
from typing import Any

from backstay import Backstay, BlockingContext, Context

_app = Backstay("sqlite:///unused.db")


@_app.job("part")
async def part(payload: int) -> int:
    return payload * 10


@_app.job("parent", isolation="process", max_attempts=1)
def parent(payload: int, ctx: BlockingContext) -> dict[str, Any]:
    before = len(ctx.children)
    first = ctx.submit(part, 1)
    ctx.submit("part", 2, depends_on=[first], delay=0.0, tags=("a",), key="second")
    children = ctx.wait_for_children(trigger_rule="all_success")
    return {"before": before, "results": sorted(each.result for each in children.all())}


@_app.job("parent_async", isolation="process", max_attempts=1)
async def parent_async(payload: int, ctx: Context) -> Any:
    await ctx.submit("part", payload, at_once=True)
    await ctx.wait_for_children()


@parent_async.join
async def joined(payload: int, ctx: Context) -> list[Any]:
    return [each.result async for each in ctx.children]


@_app.job("mistaken", isolation="process", max_attempts=1)
def mistaken(payload: int, ctx: BlockingContext) -> None:
    ctx.submit("part", 1, parent="x")


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
