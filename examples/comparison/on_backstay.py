"""The application of the tutorial on Backstay. Services: none. `backstay --app comparison.on_backstay:app worker`"""

import time
from datetime import timedelta
from typing import Any

from backstay import Backstay, BlockingContext, Retry
from comparison.outside import STEP_SECONDS, charge, strike

app = Backstay()


@app.job("count", timeout=60)
def count(upto: int, *, ctx: BlockingContext) -> dict[str, int]:
    for number in range(1, upto + 1):
        time.sleep(STEP_SECONDS)
        ctx.progress(number / upto, stage=f"at {number}")
    return {"counted": upto, "attempt": ctx.attempt}


@app.job("order", max_attempts=3)
def order(number: int, *, ctx: BlockingContext) -> dict[str, Any]:
    receipt = ctx.step("charge", charge, number)
    if ctx.attempt == 1:
        raise Retry("the mail server is down", after=0.1)
    return {"receipt": receipt, "attempt": ctx.attempt}


@app.job("tick")
def tick() -> None:
    strike()


def set_up() -> None:
    """Once: the schedule."""
    with app.sync:
        app.sync.schedule("often", "@every 1s", "tick", {})


def submit(name: str, after: float = 0, **arguments: Any) -> str:
    with app.sync:
        return app.sync.submit(name, arguments, delay=timedelta(seconds=after)).job_id


def result_of(job_id: str, timeout: float) -> Any:
    with app.sync:
        return app.sync.result(job_id, timeout)


def progress_of(job_id: str) -> float:
    with app.sync:
        return app.sync.get(job_id).progress


def why_not_running(job_id: str) -> str | None:
    with app.sync:
        return str(app.sync.explain(job_id))
