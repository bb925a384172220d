"""The submit page: a form built from the job type's schema, or plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
from fastapi import Depends, Request, Response

from backstay.app import Backstay
from backstay.core import payload_schema, sensitive
from backstay.core.checks import PRIORITIES, check_max_attempts, check_priority
from backstay.core.records import JobType
from backstay.dashboard import page, schema_form
from backstay.dashboard.page import Form, moment_of
from backstay.dashboard.schema_form import Field
from backstay.errors import InvalidOption, InvalidPayload, UnknownJobType
from backstay.ops.jobs import state
from backstay.options import SubmitOptions
from backstay.server import submit as server_submit
from backstay.server import visibility, worker_summary
from backstay.server.auth import App, By, Principal, Who, check_queue, needs, visible
from backstay.server.problems import Problem
from backstay.server.submit import Asked

OPTIONS = ("priority", "run_at", "delay", "queue", "subject", "tags", "dedup_key", "max_attempts", "timeout")
JSON = "json"

router = page.pages()


class Draft(msgspec.Struct, kw_only=True):
    """A form being filled in. `errors` by payload path and by option name."""

    job_type: JobType
    field: Field
    inputs: dict[str, list[str]]
    options: Mapping[str, str]
    mode: str = "form"
    text: str = ""  # the payload, if entered as JSON
    errors: dict[str, str]

    @property
    def opened(self) -> bool:
        """Whether to open the options: one of them is set or invalid."""
        return any(self.options.values()) or any(name in self.errors for name in OPTIONS)


# Choosing a type


@router.get("/submit", dependencies=[Depends(needs("submit"))])
async def show(request: Request, app: App, who: Who) -> Response:
    name = request.query_params.get("type")
    if name is None:
        known = [each for each in await app.job_types() if who.sees(each.queue)]
        known.sort(key=lambda each: each.job_type)
        return page.render(
            request, "submit.html", types=known, handled=(await worker_summary.summary(request)).handled(), draft=None
        )
    draft = _blank(await _type(app, who, name), "json" if request.query_params.get("mode") == JSON else "form")
    if earlier := request.query_params.get("from"):
        await _like(app, who, draft, earlier)
    return _page(request, draft)


async def _type(app: Backstay, who: Principal, name: str) -> JobType:
    """One of the types that this key can see."""
    for each in await app.job_types():
        if each.job_type == name and who.sees(each.queue):
            return each
    raise UnknownJobType(f"no worker has registered a handler for {name!r:.80}: choose another type")


def _blank(job_type: JobType, mode: str) -> Draft:
    field = schema_form.form_of(job_type.payload_schema)
    return Draft(
        job_type=job_type,
        field=field,
        inputs=schema_form.initial(field),
        options={"queue": "", "priority": ""},
        mode=mode,
        text=_starting(field),
        errors={},
    )


def _starting(field: Field) -> str:
    filled = schema_form.read(field, schema_form.initial(field))
    return _indented(filled.value if filled.value is not None else {})


async def _like(app: Backstay, who: Principal, draft: Draft, job_id: str) -> None:
    """Return a draft filled in like an earlier job, without its sensitive values."""
    job = await visible(app, who, job_id)
    if job.job_type != draft.job_type.job_type or job.archived_at is not None:
        return
    payload = _without_masks(sensitive.masked((await visibility.all_marks(app)).get(job.job_type, ()), job.payload))
    draft.inputs, draft.text = schema_form.inputs_of(draft.field, payload), _indented(payload)
    draft.options = {"queue": job.queue, "priority": str(job.priority), "subject": job.subject or ""}


def _without_masks(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_masks(part) for name, part in value.items() if part != sensitive.MASK}
        case list():
            return [_without_masks(part) for part in value]
        case _:
            return value


# Filling it in


@router.post("/submit", dependencies=[Depends(needs("submit"))])
async def submit(request: Request, app: App, who: Who, by: By) -> Response:
    form = await page.read(request)
    draft = await _filled(app, who, form)
    if (pressed := form.get("press", "")) != "submit":
        return _page(request, _pressed(draft, pressed))
    value = _value(draft)
    options = _options(draft)
    if draft.errors:
        _mark(app, draft, value)
        return _page(request, draft, status=422)
    options["created_by"] = page.creator(who)
    check_queue(who, options.get("queue", draft.job_type.queue))
    name = draft.job_type.job_type
    try:
        async with app.audited("job.submit", name, by=by) as entry:
            handle = await server_submit.submit(app, who, Asked(name, value, options))
            entry.target, entry.after = handle.job_id, state(handle.row)
    except page.REFUSALS as error:
        _blame(app, draft, value, error)
        return _page(request, draft, status=422)
    except Problem as problem:
        if problem.slug != "dedup-conflict":
            raise
        draft.errors["dedup_key"] = _message(problem)
        return _page(request, draft, status=422)
    notice = "No new job: this one already exists." if handle.deduplicated else "Submitted."
    return page.redirect(request, f"/jobs/{handle.job_id}", notice)


async def _filled(app: Backstay, who: Principal, form: Form) -> Draft:
    draft = _blank(await _type(app, who, form.get("type", "")), JSON if form.get("mode") == JSON else "form")
    draft.options = {name: form.get(name, "").strip() for name in OPTIONS}
    if draft.mode == JSON:
        draft.text = form.get("json", "")
    else:
        draft.inputs = {
            name: form.all(name) for name in form if name.partition("/")[0].partition("@")[0] == schema_form.ROOT
        }
    return draft


def _pressed(draft: Draft, what: str) -> Draft:
    """A button that changes the form: add or remove a row, or switch between form and JSON."""
    verb, _, path = what.partition(" ")
    match verb:
        case "add":
            draft.inputs = schema_form.with_row(draft.field, path, draft.inputs)
        case "remove":
            draft.inputs = schema_form.without_row(path, draft.inputs)
        case "json":
            draft.text = _indented(schema_form.read(draft.field, schema_form.tidied(draft.field, draft.inputs)).value)
            draft.mode = JSON
        case "form":
            value = _value(draft)
            if not draft.errors:
                draft.inputs, draft.mode = schema_form.inputs_of(draft.field, value), "form"
        case _:
            pass
    return draft


def _value(draft: Draft) -> Any:
    if draft.mode == JSON:
        asked = schema_form.form_of(None)
        filled = schema_form.read(asked, {asked.path: [draft.text]})
    else:
        draft.inputs = schema_form.tidied(draft.field, draft.inputs)
        filled = schema_form.read(draft.field, draft.inputs)
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
            draft.errors[name] = _message(error)
    if "run_at" in found and "delay" in found:
        draft.errors["delay"] = "Set a run time or a delay, not both."
    return found


def _option(name: str, text: str) -> Any:
    match name:
        case "priority":
            return check_priority(text if text in PRIORITIES else _whole(name, text))
        case "max_attempts":
            return check_max_attempts(_whole(name, text))
        case "run_at":
            return moment_of("run_at", text)
        case "delay" | "timeout":
            return timedelta(seconds=_whole(name, text))
        case "tags":
            return [each for each in (part.strip() for part in text.split(",")) if each]
        case _:
            return text


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise InvalidOption(f"{name}={text!r:.40}: enter a whole number", option=name)
    return int(text)


# Errors


def _blame(app: Backstay, draft: Draft, value: Any, error: Exception) -> None:
    """Attach the error to the field it concerns, if that can be determined."""
    if isinstance(error, InvalidPayload):
        _mark(app, draft, value)
    name = error.option if isinstance(error, InvalidOption) else None
    if name is not None and name in OPTIONS:
        draft.errors[name] = _message(error)
    if not draft.errors:
        draft.errors[schema_form.ROOT] = _message(error)


def _mark(app: Backstay, draft: Draft, value: Any) -> None:
    """Mark every invalid field at once. Where a field is blank or unreadable the payload has a gap: errors about the
    objects around it are left out, since the gap may be their only cause."""
    gaps = tuple(draft.errors)
    for place, says in _misfits(app, draft, value):
        path = schema_form.path_of(draft.field, place)
        if not any(gap == path or gap.startswith(f"{path}/") or path.startswith(f"{gap}/") for gap in gaps):
            draft.errors.setdefault(path, says)


def _misfits(app: Backstay, draft: Draft, value: Any) -> list[tuple[tuple[str | int, ...], str]]:
    handler = app.handlers.get(draft.job_type.job_type)
    if handler is None:
        schema = draft.job_type.payload_schema
        return [] if schema is None else [(place, f"{says}.") for place, says in payload_schema.misfits(schema, value)]
    try:
        handler.adapter.validate_python(value)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return [(each["loc"], f"{each['msg']}.") for each in found]
    except Exception:  # from a custom validator, which expects a payload without gaps
        return []
    return []


def _message(error: Exception) -> str:
    """The error without the option's name and value, which are shown next to it."""
    text, option = str(error), getattr(error, "option", None)
    if option is not None:
        text = text.partition(f"{option}=")[2].partition(": ")[2] or text
    return f"{text[:1].upper()}{text[1:]}."


def _page(request: Request, draft: Draft, *, status: int = 200) -> Response:
    drawn = schema_form.drawn(draft.field, draft.inputs, draft.errors)
    return page.render(
        request, "submit.html", status=status, draft=draft, form=drawn, types=(), handled=(), priorities=PRIORITIES
    )


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
