"""Handlers in child processes that pass on files by reference: they must stand at the top level of a module."""

from collections.abc import Callable

from backstay import ArtifactRef, Backstay, BlockingContext, Context

_app = Backstay("sqlite:///unused.db")


@_app.job("make_child", isolation="process")
async def make_child(payload: str, ctx: Context) -> ArtifactRef:
    await ctx.artifact("note.txt", payload)
    return await ctx.artifact_ref("note.txt")


@_app.job("read_child", isolation="process")
def read_child(payload: ArtifactRef, ctx: BlockingContext) -> str:
    return ctx.read_artifact(payload).decode()


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
