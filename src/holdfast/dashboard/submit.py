"""Submitting from a form that is made of the job type's schema, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
from fastapi import Depends, Request, Response

from holdfast import schemas, sensitive
from holdfast.app import Holdfast
from holdfast.checks import PRIORITIES, check_max_attempts, check_priority
from holdfast.dashboard import fields, filling, forms, frame, trail, widgets
from holdfast.dashboard.fields import Field
from holdfast.dashboard.forms import Form
from holdfast.dashboard.job import moment_of
from holdfast.errors import InvalidOption, InvalidPayload, UnknownJobType
from holdfast.server import admitting
from holdfast.server.admitting import Asked
from holdfast.server.changes import audited, said_of
from holdfast.server.guarding import App, Who, check_queue, needs, visible
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.store.types import JobType
from holdfast.submission import SubmitOptions

OPTIONS = ("priority", "run_at", "delay", "queue", "subject", "tags", "dedup_key", "max_attempts", "timeout")
JSON = "json"

router = frame.pages()


class Draft(msgspec.Struct, kw_only=True):
    """A form as it is being filled in. `errors`: by path of the payload, and by name of an option."""

    job_type: JobType
    field: Field
    inputs: dict[str, list[str]]
    options: Mapping[str, str]
    mode: str = "form"
    text: str = ""  # the payload, where it is written as JSON
    errors: dict[str, str]

    @property
    def opened(self) -> bool:
        """Whether the options are worth showing: something is filled in there, or wrong."""
        return any(self.options.values()) or any(name in self.errors for name in OPTIONS)


# Choosing


@router.get("/submit", dependencies=[Depends(needs("submit"))])
async def show(request: Request, app: App, who: Who) -> Response:
    name = request.query_params.get("type")
    if name is None:
        known = [each for each in await app.store.job_types() if who.sees(each.queue)]
        known.sort(key=lambda each: each.job_type)
        return frame.render(request, "submit.html", types=known, handled=await _handled(app), draft=None)
    draft = _blank(await _type(app, who, name), "json" if request.query_params.get("mode") == JSON else "form")
    if earlier := request.query_params.get("from"):
        await _like(app, who, draft, earlier)
    return _page(request, draft)


async def _handled(app: Holdfast) -> frozenset[str]:
    """Types that a worker would take up now."""
    return frozenset(name for worker in await app.workers() if not worker.stopping for name in worker.job_types)


async def _type(app: Holdfast, who: Principal, name: str) -> JobType:
    """One of those that are listed for this key."""
    for each in await app.store.job_types():
        if each.job_type == name and who.sees(each.queue):
            return each
    raise UnknownJobType(f"no worker has announced a handler of {name!r:.80}: choose another type")


def _blank(job_type: JobType, mode: str) -> Draft:
    field = fields.form_of(job_type.payload_schema)
    return Draft(
        job_type=job_type,
        field=field,
        inputs=filling.initial(field),
        options={"queue": "", "priority": ""},
        mode=mode,
        text=_starting(field),
        errors={},
    )


def _starting(field: Field) -> str:
    filled = filling.read(field, filling.initial(field))
    return _indented(filled.value if filled.value is not None else {})


async def _like(app: Holdfast, who: Principal, draft: Draft, job_id: str) -> None:
    """Filled in like an earlier job, without what is a secret there."""
    job = await visible(app, who, job_id)
    if job.job_type != draft.job_type.job_type or job.archived_at is not None:
        return
    payload = _uncovered(sensitive.masked(draft.job_type.payload_schema, job.payload))
    draft.inputs, draft.text = filling.inputs_of(draft.field, payload), _indented(payload)
    draft.options = {"queue": job.queue, "priority": str(job.priority), "subject": job.subject or ""}


def _uncovered(value: Any) -> Any:
    match value:
        case dict():
            return {name: _uncovered(part) for name, part in value.items() if part != sensitive.MASK}
        case list():
            return [_uncovered(part) for part in value]
        case _:
            return value


# Filling in


@router.post("/submit", dependencies=[Depends(needs("submit"))])
async def submit(request: Request, app: App, who: Who) -> Response:
    form = await forms.read(request)
    draft = await _filled(app, who, form)
    if (pressed := form.get("press", "")) != "submit":
        return _page(request, _pressed(draft, pressed))
    value = _value(draft)
    options = _options(draft)
    if draft.errors:
        _mark(app, draft, value)
        return _page(request, draft, status=422)
    options["created_by"] = trail.creator(who)
    check_queue(who, options.get("queue", draft.job_type.queue))
    name = draft.job_type.job_type
    try:
        async with audited(app, who, request, "job.submit", name) as entry:
            handle = await admitting.submit(app, who, Asked(name, value, options))
            entry.target, entry.after = handle.job_id, said_of(handle)
    except trail.REFUSALS as error:
        _blame(app, draft, value, error)
        return _page(request, draft, status=422)
    except Problem as problem:
        if problem.slug != "dedup-conflict":
            raise
        draft.errors["dedup_key"] = _said(problem)
        return _page(request, draft, status=422)
    said = "An earlier job answers for this one." if handle.deduplicated else "Submitted."
    return frame.redirect(request, f"/jobs/{handle.job_id}", said)


async def _filled(app: Holdfast, who: Principal, form: Form) -> Draft:
    draft = _blank(await _type(app, who, form.get("type", "")), JSON if form.get("mode") == JSON else "form")
    draft.options = {name: form.get(name, "").strip() for name in OPTIONS}
    if draft.mode == JSON:
        draft.text = form.get("json", "")
    else:
        draft.inputs = {
            name: form.all(name) for name in form if name.partition("/")[0].partition("@")[0] == fields.ROOT
        }
    return draft


def _pressed(draft: Draft, what: str) -> Draft:
    """A button that changes the form: a row more or less, or the other way to write it."""
    verb, _, path = what.partition(" ")
    match verb:
        case "add":
            draft.inputs = filling.with_row(draft.field, path, draft.inputs)
        case "remove":
            draft.inputs = filling.without_row(path, draft.inputs)
        case "json":
            draft.text = _indented(filling.read(draft.field, filling.tidied(draft.field, draft.inputs)).value)
            draft.mode = JSON
        case "form":
            value = _value(draft)
            if not draft.errors:
                draft.inputs, draft.mode = filling.inputs_of(draft.field, value), "form"
        case _:
            pass
    return draft


def _value(draft: Draft) -> Any:
    if draft.mode == JSON:
        asked = fields.form_of(None)
        filled = filling.read(asked, {asked.path: [draft.text]})
    else:
        draft.inputs = filling.tidied(draft.field, draft.inputs)
        filled = filling.read(draft.field, draft.inputs)
    draft.errors |= filled.errors
    return filled.value


def _options(draft: Draft) -> SubmitOptions:
    found = SubmitOptions()
    for name, text in draft.options.items():
        if not text:
            continue
        try:
            found[name] = _option(name, text)  # type: ignore[literal-required]  # one of OPTIONS
        except InvalidOption as error:
            draft.errors[name] = _said(error)
    if "run_at" in found and "delay" in found:
        draft.errors["delay"] = "Give a time or a delay, not both."
    return found


def _option(name: str, text: str) -> Any:
    match name:
        case "priority":
            return check_priority(text if text in PRIORITIES else _whole(name, text))
        case "max_attempts":
            return check_max_attempts(_whole(name, text))
        case "run_at":
            return moment_of(text)
        case "delay" | "timeout":
            return timedelta(seconds=_whole(name, text))
        case "tags":
            return [each for each in (part.strip() for part in text.split(",")) if each]
        case _:
            return text


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise InvalidOption(f"{name}={text!r:.40}: write a whole number")
    return int(text)


# What is wrong


def _blame(app: Holdfast, draft: Draft, value: Any, error: Exception) -> None:
    """Beside the field that it is about, where that can be told."""
    if isinstance(error, InvalidPayload):
        _mark(app, draft, value)
    name = str(error).partition("=")[0]
    if name in OPTIONS:
        draft.errors[name] = _said(error)
    if not draft.errors:
        draft.errors[fields.ROOT] = _said(error)


def _mark(app: Holdfast, draft: Draft, value: Any) -> None:
    """Every field that does not fit, at once. Where one is blank or cannot be read, the payload has gaps: what is said
    of the whole around a gap is left out, since it may be about nothing else."""
    gaps = tuple(draft.errors)
    for place, says in _misfits(app, draft, value):
        path = filling.path_of(draft.field, place)
        if not any(gap == path or gap.startswith(f"{path}/") or path.startswith(f"{gap}/") for gap in gaps):
            draft.errors.setdefault(path, says)


def _misfits(app: Holdfast, draft: Draft, value: Any) -> list[tuple[tuple[str | int, ...], str]]:
    handler = app.handlers.get(draft.job_type.job_type)
    if handler is None:
        schema = draft.job_type.payload_schema
        return [] if schema is None else [(place, f"{says}.") for place, says in schemas.misfits(schema, value)]
    try:
        handler.adapter.validate_python(value)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return [(each["loc"], f"{each['msg']}.") for each in found]
    except Exception:  # of a validator of the handler's own, which expects a payload without gaps
        return []
    return []


def _said(error: Exception) -> str:
    """Without the name, which stands beside it."""
    name, _, rest = str(error).partition("=")
    text = rest.partition(": ")[2] if name in OPTIONS and ": " in rest else str(error)
    return f"{text[:1].upper()}{text[1:]}."


def _page(request: Request, draft: Draft, *, status: int = 200) -> Response:
    drawn = widgets.drawn(draft.field, draft.inputs, draft.errors)
    return frame.render(
        request, "submit.html", status=status, draft=draft, form=drawn, types=(), handled=(), priorities=PRIORITIES
    )


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
