"""A store in which every text that people can write is one that would run, if a page let it."""

from __future__ import annotations

from typing import Any

from holdfast import Context, Holdfast
from holdfast.testing import drain
from tests.browser.staged import Staged

HOSTILE = (
    "<script>__p()</script><img src=x onerror=__p()>\"'><svg/onload=__p()>"
    "{{7*7}}{% raw %}javascript:__p()\u2028\u202e</pre>"
)


def make_app(url: str, text: str = HOSTILE, **options: Any) -> Holdfast:
    app = Holdfast(url, **options)

    @app.job("hostile", max_attempts=1)
    async def hostile(payload: dict[str, Any], ctx: Context) -> Any:
        await ctx.progress(0.5, text[:200])
        ctx.log.info("%s", text)
        await ctx.metric("a", 1)
        await ctx.artifact("page.html", text)
        await ctx.artifact("picture.svg", f"<svg xmlns='http://www.w3.org/2000/svg'>{text}</svg>")
        await ctx.artifact("notes.txt", text)
        await ctx.submit("child", text, stage=text[:200], key="c")
        return {text: text}

    @app.job("child", max_attempts=1)
    async def child(payload: str) -> None:
        raise ValueError(payload)

    return app


async def fill(app: Holdfast, text: str = HOSTILE) -> Staged:
    """Into an open app."""
    staged = Staged()
    done = await app.submit(
        "hostile",
        {text: text},
        subject=text[:500],
        tags=[text[:120]],
        created_by=text[:120],
        dedup_key=text[:500],
        content_hash=text[:500],
        fairness_key=text[:500],
    )
    await drain(app)
    late = await app.submit("hostile", {}, subject=text[:500], delay=3600)
    await app.cancel(late.job_id, by=text[:120], reason=text[:2000])
    child = (await app.find(job_type="child", limit=1))[0]
    await app.schedule("hostile", "@daily", "hostile", {text: text}, subject=text[:500])
    await app.pause_schedule("hostile", by=text[:120])
    await app.pause_queue("default", by=text[:120], reason=text[:2000])
    staged.jobs |= {"done": done.job_id, "cancelled": late.job_id, "child": child.job_id}
    return staged
