"""The text of a report: by a language model if one is configured, else from the figures.

The model gets all questions at once, and the answers are fetched later. That may take a day, without occupying a slot:
the job snoozes. The batch id is recorded, so that a job that runs again fetches the answers to the same questions, and
pays for none twice.

REPORT submits it as its child, waits for it, and writes the report whatever its outcome:

    request = narrative.request(analysis, config)          # None if no model is configured
    child = None
    if request is not None:
        await ctx.submit("NARRATIVE", request, key="narrative", stage="NARRATIVE")
        [child] = await ctx.wait_for_children()
    files = build(analysis, config, visualizations, narrative.told(analysis, config, child))
"""

import os
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from backstay import Backoff, Backstay, BlockingContext, Discard, Job, Snooze

from . import llm
from .configs import ReportConfig
from .prompts import prompts
from .report.model import Analysis, Narrative
from .sentences import sentences

LOOK_AGAIN_SECONDS = 30.0
GIVE_UP = timedelta(hours=26)  # servers promise an answer within a day; a plain report is better than none


class NarrativeRequest(BaseModel):
    """The questions, by section of the report."""

    prompts: dict[str, str]
    max_tokens: int = Field(4000, ge=1)
    model: str = ""  # empty: POLIS_LLM_MODEL


def sections(config: ReportConfig) -> list[str]:
    """Return the texts of a report, in order."""
    wanted = {
        "summary": True,
        "groups": True,
        "consensus": config.include_consensus,
        "topics": config.include_topics,
        "uncertainty": config.include_uncertainty,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def request(analysis: Analysis, config: ReportConfig) -> NarrativeRequest | None:
    """Return the questions for the model; None if none is configured."""
    if llm.configured(config.model) is None:
        return None
    asked = prompts(analysis, sections(config), config.language)
    return NarrativeRequest(prompts=asked, max_tokens=config.max_tokens, model=config.model)


def narrative_job(app: Backstay) -> None:
    """Register NARRATIVE."""
    app.job("NARRATIVE", max_attempts=4, timeout=3600, backoff=Backoff(base=10, max=300))(narrate)


def narrate(payload: NarrativeRequest, ctx: BlockingContext) -> dict[str, Any]:
    """The handler of NARRATIVE."""
    model = llm.configured(payload.model)
    if model is None:
        raise llm.LLMError("POLIS_LLM_URL and POLIS_LLM_MODEL are not set where this worker runs")
    try:
        batch = ctx.once("hand in", lambda: model.submit(payload.prompts, payload.max_tokens, ctx.idempotency_key))
    except llm.NoBatches:
        return _one_after_another(model, payload, ctx)
    ctx.progress(0.5, stage="the model writes")
    handed_in = ctx.once("handed in at", lambda: ctx.job.updated_at.isoformat())
    answers = model.check(batch)
    if answers is None:
        if ctx.job.updated_at - datetime.fromisoformat(handed_in) > GIVE_UP:
            raise Discard(f"the model did not answer {batch} within {GIVE_UP.total_seconds() / 3600:g} hours")
        raise Snooze(look_again_seconds(), f"the model still works on {batch}")
    return _result(model, answers)


def _one_after_another(model: llm.LLM, payload: NarrativeRequest, ctx: BlockingContext) -> dict[str, Any]:
    """Ask one by one, for a server without batches. Every answer is recorded, so that none is paid for twice."""
    answers = {}
    for number, (name, prompt) in enumerate(payload.prompts.items()):
        ctx.progress(number / len(payload.prompts), stage=f"the model writes: {name}")
        answers[name] = ctx.once(f"ask {name}", partial(model.ask, prompt, payload.max_tokens))
    return _result(model, answers)


def _result(model: llm.LLM, answers: dict[str, str]) -> dict[str, Any]:
    if not answers:
        raise llm.LLMError("the model answered none of the questions")
    return {"written_by": model.model, "sections": answers}


def look_again_seconds() -> float:
    said = os.environ.get("POLIS_LLM_CHECK_SECONDS", "")
    try:
        return float(said) if said else LOOK_AGAIN_SECONDS
    except ValueError:
        raise llm.LLMError(f"POLIS_LLM_CHECK_SECONDS is {said!r}: it is a number of seconds") from None


def told(analysis: Analysis, config: ReportConfig, job: Job | None) -> Narrative:
    """Return the texts of the job, if there was one. A section without an answer is written from the figures."""
    plain = sentences(analysis, sections(config))
    if job is None:
        return Narrative(plain, written_by="")
    if job.status != "completed":
        why = job.last_error or job.status.value
        return Narrative(plain, written_by="", note=f"The model did not write it: {why}")
    answers = job.result["sections"]
    missing = [name for name in plain if name not in answers]
    note = f"The model gave no answer for: {', '.join(missing)}." if missing else ""
    return Narrative({**plain, **answers}, job.result["written_by"], config.language, note)
