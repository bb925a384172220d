"""Submit and find options: checked, completed with defaults, and turned into a NewJob or a Query. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict, Unpack, cast

import msgspec

from backstay import codec, encryption, ids, limits
from backstay.clock import MICROS, Instant, micros, to_instant
from backstay.core import dependencies, payload_schema
from backstay.core.checks import (
    check_max_attempts,
    check_name,
    check_payload_size,
    check_priority,
    check_text,
    check_timeout,
    did_you_mean,
    span,
)
from backstay.core.dependencies import TriggerRule
from backstay.core.derivation import ANY_AGE, DERIVED, Derivation, of_fields, render
from backstay.core.records import (
    FOREVER,
    Inserted,
    JobRecord,
    JobTemplate,
    JobType,
    NewJob,
    Query,
    Rate,
    dedup_key_of,
    shared,
)
from backstay.core.states import OTHER_NAMES, Status
from backstay.errors import ConfigurationError, DependencyCycle, InvalidOption, InvalidPayload
from backstay.handlers import Handler


class HasJobId(Protocol):
    @property
    def job_id(self) -> str: ...


JobRef = str | HasJobId


class SubmitOptions(TypedDict, total=False):
    """The keyword options of submit."""

    priority: int | str
    run_at: datetime
    delay: float | timedelta
    queue: str
    subject: str
    tags: Iterable[str]
    job_id: str
    expires: float | timedelta | datetime
    dedup_key: str
    dedup_by: Sequence[str]
    dedup_for: str | float | timedelta
    dedup: str
    debounce_max: float | timedelta
    content_hash: str
    reuse: bool | float | timedelta
    depends_on: Iterable[JobRef]
    trigger_rule: str
    on_dependency_failure: str
    parent: JobRef
    stage: str
    max_attempts: int
    timeout: float | timedelta
    created_by: str
    concurrency_key: str
    rate_key: str
    rate_cost: int
    fairness_key: str
    fairness_weight: int
    connection: Any


_SUBMIT_OPTIONS = frozenset(SubmitOptions.__annotations__)
_DESCRIBING = frozenset(("queue", "priority", "subject", "created_by"))  # the usual ones, which decide nothing else


def build(
    target: Handler | JobType,
    payload: Any,
    job_id: str,
    now: Instant,
    options: SubmitOptions,
    *,
    for_template: bool = False,
) -> NewJob:
    if isinstance(target, Handler):
        name, limit = target.name, target.global_concurrency
    else:
        name, limit = target.job_type, target.concurrency_limit
    text = encoded_payload(target, payload)
    if target.derivation is not None:
        options = _with_derived(target, name, text, now, options, for_template)
    is_plain = limit is None and target.rate is None and target.version == 1 and not target.reuse_by
    if is_plain and not options:
        return NewJob(
            job_id, name, target.queue, target.priority, text, now, target.max_attempts, target.timeout_micros
        )
    if is_plain and options.keys() <= _DESCRIBING:
        return NewJob(
            job_id,
            name,
            check_name(options["queue"], "queue") if "queue" in options else target.queue,
            check_priority(options["priority"]) if "priority" in options else target.priority,
            text,
            now,
            target.max_attempts,
            target.timeout_micros,
            subject=_text(options, "subject", limits.KEY_LENGTH_MAX),
            created_by=_text(options, "created_by", limits.NAME_LENGTH_MAX),
        )
    return _with_options(target, name, limit, text, job_id, now, options)


def encoded_payload(target: Handler | JobType, payload: Any) -> str:
    """Return a payload as it is stored, checked against the model of the handler or the schema of the type."""
    if isinstance(target, Handler):
        return target.encode(payload)
    text = check_payload_size(codec.to_json(payload))
    payload_schema.check(target.job_type, target.payload_schema, text)
    if marks := encryption.marks_of(target.payload_schema):
        text = check_payload_size(encryption.encrypted(text, marks, target.job_type, encryption.PAYLOAD))
    return text


def build_alike(target: Handler, payloads: Iterable[Any], job_ids: Sequence[str], now: Instant) -> list[NewJob] | None:
    """Build jobs of one type without options, in half the time of `build` for each; None if each has to be built by
    itself."""
    if target.global_concurrency is not None or target.rate is not None or target.version != 1 or target.reuse_by:
        return None
    if target.derivation is not None:
        return None
    texts = target.encode_many(payloads)
    if texts is None:
        return None
    name, queue, priority = target.name, target.queue, target.priority
    max_attempts, timeout_micros = target.max_attempts, target.timeout_micros
    return [
        NewJob(job_id, name, queue, priority, text, now, max_attempts, timeout_micros)
        for job_id, text in zip(job_ids, texts, strict=True)
    ]


def job_template(target: Handler | JobType, payload: Any, options: SubmitOptions) -> JobTemplate:
    """Return the job of a schedule. Spans that count from the tick are kept as they are."""
    derivation = target.derivation
    job = build(target, payload, "", 0, options, for_template=True)
    per = None if derivation is None or options.get("dedup_key") is not None else derivation.dedup_per
    span = _reuse_span(options.get("reuse"), derivation) if job.reuse_since is not None else None
    values = {name: getattr(job, name) for name in NewJob.__struct_fields__}
    return JobTemplate(**values, dedup_per=None if job.dedup_key is None else per, reuse_micros=span)


def _with_derived(
    target: Handler | JobType, name: str, text: str, now: Instant, o: SubmitOptions, for_template: bool
) -> SubmitOptions:
    """Return the options with what the type derives from its payload. What the submit gives itself goes before that."""
    derivation = target.derivation
    assert derivation is not None  # noqa: S101 - the caller has looked
    wanted = [each for each in DERIVED if o.get(each) is None and derivation.derives(each)]
    if o.get("dedup_by") is not None and "dedup_key" in wanted:
        wanted.remove("dedup_key")
    found: dict[str, Any] = {}
    if in_code := [each for each in wanted if each in derivation.in_code]:
        if not isinstance(target, Handler):
            raise InvalidOption(
                f"{name} computes its {' and '.join(in_code)} in code, which is not here: submit it where its handler"
                f" is registered, give {'=, '.join(in_code)}=, or declare a template instead of a function"
            )
        found.update(target.computed(text, in_code))
    fields = codec.decode(text)
    for each in wanted:
        if each == "priority" and derivation.priority is not None:
            found[each] = derivation.priority.of(fields)
        elif each not in in_code and (template := getattr(derivation, each)) is not None:
            found[each] = render(each, template, fields)
    found = {each: value for each, value in found.items() if value is not None}
    if (key := found.get("dedup_key")) is not None:
        check_text("dedup_key", key, limits.KEY_LENGTH_MAX)
        if not for_template:
            found["dedup_key"] = dedup_key_of(key, derivation.dedup_per, run_at_of(o, now))
        found["dedup_for"] = derived_dedup_for(derivation)
    if (derivation.dedup_key is not None or "dedup_key" in derivation.in_code) and derivation.dedup is not None:
        found["dedup"] = derivation.dedup
        if derivation.debounce is not None and o.get("dedup") in (None, derivation.dedup):
            found["debounce_max"] = timedelta(microseconds=derivation.debounce)
    if derivation.reuse is not None and (target.reuse_by or found.get("content_hash") or o.get("content_hash")):
        found["reuse"] = True if derivation.reuse == ANY_AGE else timedelta(microseconds=derivation.reuse)
    given = {each: value for each, value in o.items() if value is not None or each not in found}
    return cast(SubmitOptions, {**found, **given})


def _reuse_span(reuse: bool | float | timedelta | None, derivation: Derivation | None) -> int | None:
    """Return how old a result may be; None: of any age."""
    if reuse is None and derivation is not None:
        return None if derivation.reuse == ANY_AGE else derivation.reuse
    return None if reuse is None or isinstance(reuse, bool) else _bounded_span("reuse", reuse)


def derived_dedup_for(derivation: Derivation) -> str | timedelta:
    """Return how long a derived dedup key stays taken, as an option of submit."""
    match derivation.dedup_for:
        case None:
            return "active"
        case forever if forever == FOREVER:
            return "forever"
        case span:
            return timedelta(microseconds=span)


def _with_options(
    target: Handler | JobType,
    name: str,
    limit: int | None,
    text: str,
    job_id: str,
    now: Instant,
    o: SubmitOptions,
) -> NewJob:
    if unknown := o.keys() - _SUBMIT_OPTIONS:
        raise InvalidOption(
            f"submit has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(_SUBMIT_OPTIONS))}"
        )
    key = _text(o, "concurrency_key", limits.KEY_LENGTH_MAX)
    if key is not None and limit is None:
        raise InvalidOption(f"concurrency_key={key!r:.80}: {name} has no global_concurrency to apply to it")
    rate_key = _text(o, "rate_key", limits.KEY_LENGTH_MAX)
    if rate_key is not None and target.rate is None:
        raise InvalidOption(f"rate_key={rate_key!r:.80}: {name} has no rate to apply to it")
    cost = _cost(o, name, target.rate)
    own_id = o.get("job_id")
    job_id = job_id if own_id is None else ids.canonical(own_id)
    depends_on = _depends_on(o)
    parent = None if o.get("parent") is None else _id_of(o["parent"])
    _check_ties(job_id, depends_on, parent)
    dedup_key = _dedup_key(target, name, text, o)
    scheduled_for = run_at_of(o, now)
    expires_at = _expires_at(o, scheduled_for, now)
    content_hash = _text(o, "content_hash", limits.KEY_LENGTH_MAX)
    if content_hash is None and target.reuse_by:
        content_hash = content_hash_of(target, name, text)
    reuse_since = _reuse_since(o, content_hash, now)
    dedup = _one_of(o, "dedup", ("return", "error", "replace"))
    if dedup == "replace":
        _check_replacing(dedup_key, content_hash)
    return NewJob(
        job_id=job_id,
        job_type=name,
        queue=check_name(o["queue"], "queue") if "queue" in o else target.queue,
        priority=check_priority(o["priority"]) if "priority" in o else target.priority,
        payload=text,
        scheduled_for=scheduled_for,
        max_attempts=check_max_attempts(o["max_attempts"]) if "max_attempts" in o else target.max_attempts,
        timeout_micros=check_timeout(o["timeout"]) if "timeout" in o else target.timeout_micros,
        subject=_text(o, "subject", limits.KEY_LENGTH_MAX),
        tags=_tags(o),
        created_by=_text(o, "created_by", limits.NAME_LENGTH_MAX),
        job_stage=_text(o, "stage", limits.STAGE_LENGTH_MAX),
        parent_job_id=parent,
        root_job_id=parent,
        content_hash=content_hash,
        concurrency_key=None if limit is None else key or name,
        concurrency_limit=limit,
        on_dependency_failure=_one_of(o, "on_dependency_failure", ("cancel", "fail")),
        payload_version=target.version,
        fairness_key=_text(o, "fairness_key", limits.KEY_LENGTH_MAX) or None,
        fairness_weight=_weight(o),
        special=bool(
            own_id
            or dedup_key
            or depends_on
            or reuse_since is not None
            or limit
            or parent
            or target.rate
            or cost != 1
            or expires_at is not None
        ),
        own_id=own_id is not None,
        dedup_key=dedup_key,
        dedup_until=None if dedup_key is None else _dedup_until(o, now),
        dedup_conflict_is_error=dedup == "error",
        dedup_replaces=dedup == "replace",
        debounce_micros=_debounce(o, dedup, scheduled_for - now),
        expires_at=expires_at,
        depends_on=depends_on,
        trigger_rule=_trigger_rule(o, depends_on),
        reuse_since=reuse_since,
        rate_key=None if target.rate is None else rate_key or name,
        rate=target.rate,
        rate_cost=cost,
    )


def run_at_of(o: SubmitOptions, now: Instant) -> Instant:
    """Return when a job is due, from `run_at` or `delay`."""
    if o.get("run_at") is not None and o.get("delay") is not None:
        raise InvalidOption("run_at and delay are mutually exclusive: give one")
    if (run_at := o.get("run_at")) is not None:
        try:
            moment = to_instant(run_at)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidOption(f"run_at={run_at!r}: {error}", option="run_at") from None
        # A time in the past becomes now: such a job must not overtake waiting ones.
        due = max(moment, now)
    elif (delay := o.get("delay")) is not None:
        due = now + _span("delay", delay)
    else:
        return now
    if due - now > limits.DELAY_SECONDS_MAX * 1_000_000:
        raise InvalidOption("run_at or delay is more than ten years ahead")
    return due


def _weight(o: SubmitOptions) -> int:
    weight = o.get("fairness_weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= limits.FAIRNESS_WEIGHT_MAX:
        raise InvalidOption(f"fairness_weight={weight!r}: use 1 to {limits.FAIRNESS_WEIGHT_MAX:,}")
    if weight != 1 and not o.get("fairness_key"):
        raise InvalidOption("fairness_weight needs a fairness_key")
    return weight


def _cost(o: SubmitOptions, name: str, rate: Rate | None) -> int:
    cost = o.get("rate_cost", 1)
    if isinstance(cost, bool) or not isinstance(cost, int) or not 1 <= cost <= limits.RATE_COST_MAX:
        raise InvalidOption(f"rate_cost={cost!r:.40}: use 1 to {limits.RATE_COST_MAX:,}", option="rate_cost")
    if rate is not None and cost > rate.count:
        raise InvalidOption(
            f"rate_cost={cost:,}: the rate of {name} allows {rate.count:,} in {span(rate.micros / MICROS)}, so that"
            " such a job could never start: raise the rate or split the job",
            option="rate_cost",
        )
    return cost


def _span(name: str, span: Any) -> int:
    try:
        found = micros(span)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if found < 0:
        raise InvalidOption(f"{name}={span!r}: use seconds or a timedelta, 0 or more", option=name)
    return found


def _bounded_span(name: str, span: Any) -> int:
    found = _span(name, span)
    if found > limits.SPAN_SECONDS_MAX * MICROS:
        raise InvalidOption(f"{name}={span!r:.40}: use at most 100 years", option=name)
    return found


def _dedup_key(target: Handler | JobType, name: str, text: str, o: SubmitOptions) -> str | None:
    """Return the key that repeats of a submit share, given or made of fields of the payload."""
    by = o.get("dedup_by")
    if by is None:
        key = _text(o, "dedup_key", limits.KEY_LENGTH_MAX)
        if key is None and "dedup_for" in o:
            raise InvalidOption("dedup_for needs a dedup_key or dedup_by")
        return key
    if o.get("dedup_key") is not None:
        raise InvalidOption("dedup_key and dedup_by both say what is the same submit: give one")
    try:
        template = of_fields(name, by, *(target.stored_fields if isinstance(target, Handler) else (None, {})))
    except ConfigurationError as error:
        raise InvalidOption(str(error), option="dedup_by") from None
    return check_text("dedup_by", render("dedup_by", template, codec.decode(text)), limits.KEY_LENGTH_MAX)


def _check_replacing(dedup_key: str | None, content_hash: str | None) -> None:
    if dedup_key is None:
        raise InvalidOption('dedup="replace" needs a dedup_key or dedup_by, to say which job it replaces')
    if content_hash is not None:
        raise InvalidOption(
            'dedup="replace" and a content hash exclude each other: the hash stands for the payload, which a later'
            " submit replaces"
        )


def _debounce(o: SubmitOptions, dedup: str, wait: int) -> int | None:
    if o.get("debounce_max") is None:
        return None
    if dedup != "replace":
        raise InvalidOption('debounce_max needs dedup="replace"', option="debounce_max")
    found = _bounded_span("debounce_max", o["debounce_max"])
    if found < wait:
        raise InvalidOption(
            "debounce_max is shorter than the delay: no submit would be replaced", option="debounce_max"
        )
    return found


def _expires_at(o: SubmitOptions, scheduled_for: Instant, now: Instant) -> Instant | None:
    """Return by when a job has to have started."""
    match o.get("expires"):
        case None:
            return None
        case datetime() as moment:
            try:
                found = to_instant(moment)
            except (ValueError, TypeError) as error:
                raise InvalidOption(f"expires={moment!r}: {error}", option="expires") from None
        case span:
            found = now + _bounded_span("expires", span)
    if found <= scheduled_for:
        raise InvalidOption(
            f"expires={o['expires']!r:.60}: the job would expire before it is due, and never run", option="expires"
        )
    return min(found, FOREVER)


def _dedup_until(o: SubmitOptions, now: Instant) -> Instant | None:
    match o.get("dedup_for", "active"):
        case "active":
            return None
        case "forever":
            return FOREVER
        case str() as word:
            raise InvalidOption(f'dedup_for={word!r}: use "active", "forever", seconds or a timedelta')
        case span:
            return now + _bounded_span("dedup_for", span)


def content_hash_of(target: Handler | JobType, name: str, payload: str) -> str:
    """Return the hash that identical jobs share: of the type, the version of its code, and the payload fields in
    `reuse_by`. A submitter without the code, who fills in no defaults, uses those of the stored schema."""
    fields = codec.decode(payload)
    fields = fields if isinstance(fields, dict) else {}
    defaults = {} if isinstance(target, Handler) else payload_schema.defaults(target.payload_schema)
    missing = [field for field in target.reuse_by if field not in fields and field not in defaults]
    if missing and _takes_any_fields(target):
        raise InvalidPayload(
            f"payload of {name}: it has no {missing[0]}, which identifies identical jobs (reuse_by): two jobs without"
            " it would take each other's result"
        )
    chosen = {field: fields.get(field, defaults.get(field)) for field in target.reuse_by}
    basis = "\0".join((name, target.code_version, json.dumps(chosen, sort_keys=True, separators=(",", ":"))))
    return hashlib.sha256(basis.encode()).hexdigest()


def _takes_any_fields(target: Handler | JobType) -> bool:
    """Return whether no model defines the default of a missing field."""
    schema = target.describe(0).payload_schema if isinstance(target, Handler) else target.payload_schema
    return schema is None or payload_schema.properties(msgspec.json.decode(schema)) is None


def _reuse_since(o: SubmitOptions, content_hash: str | None, now: Instant) -> Instant | None:
    reuse = o.get("reuse", False)
    if reuse is False or reuse is None:
        return None
    if content_hash is None:
        raise InvalidOption("reuse needs a content_hash, or a handler with reuse_by")
    return 0 if reuse is True else max(0, now - _bounded_span("reuse", reuse))


def _trigger_rule(o: SubmitOptions, depends_on: tuple[str, ...]) -> str:
    rule = _one_of(o, "trigger_rule", tuple(TriggerRule))
    if rule != TriggerRule.ALL_SUCCESS and not depends_on:
        raise InvalidOption(f"trigger_rule={rule!r} needs depends_on")
    return rule


def _check_ties(job_id: str, depends_on: tuple[str, ...], parent: str | None) -> None:
    if job_id in depends_on:
        raise DependencyCycle(f"job {job_id} depends on itself: nothing was stored")
    if parent is not None and parent in depends_on:
        raise InvalidOption(
            f"depends_on names the parent {parent}: a child that is submitted with its parent's completion starts after"
            " it anyway; leave one of the two out"
        )


def _depends_on(o: SubmitOptions) -> tuple[str, ...]:
    refs = o.get("depends_on")
    if refs is None:
        return ()
    try:
        listed: list[Any] = [refs] if isinstance(refs, str) or hasattr(refs, "job_id") else list(refs)
    except TypeError:
        raise InvalidOption(f"depends_on={refs!r:.80}: use a list of jobs or ids") from None
    found = tuple(dict.fromkeys(_id_of(ref) for ref in listed))
    if len(found) > limits.DEPENDENCIES_MAX:
        raise InvalidOption(f"depends_on names {len(found):,} jobs; the limit is {limits.DEPENDENCIES_MAX:,}")
    return found


def _id_of(ref: JobRef) -> str:
    return ids.canonical(ref if isinstance(ref, str) else getattr(ref, "job_id", str(ref)))


def _text(o: SubmitOptions, name: str, longest: int) -> str | None:
    return check_text(name, o.get(name), longest)


def _tags(o: SubmitOptions) -> str | None:
    tags = o.get("tags")
    if tags is None:
        return None
    try:
        listed = [tags] if isinstance(tags, str) else list(tags)
    except TypeError:
        raise InvalidOption(f"tags={tags!r:.80}: use a list of strings", option="tags") from None
    if len(listed) > limits.TAGS_MAX:
        raise InvalidOption(f"{len(listed)} tags; the limit is {limits.TAGS_MAX}", option="tags")
    for tag in listed:
        if not isinstance(tag, str) or not 0 < len(tag) <= limits.TAG_LENGTH_MAX:
            raise InvalidOption(
                f"tag {tag!r:.80}: use a string of 1 to {limits.TAG_LENGTH_MAX} characters", option="tags"
            )
    return codec.to_json(listed, "tags") if listed else None


def _one_of(o: SubmitOptions, name: str, allowed: tuple[str, ...]) -> str:
    value = o.get(name) or allowed[0]
    if value not in allowed:
        raise InvalidOption(f"{name}={value!r}: use {', '.join(allowed[:-1])} or {allowed[-1]}")
    return str(value)


def new_record(job: NewJob, inserted: Inserted, now: Instant) -> JobRecord:
    """Return the record of a job that was just stored, without reading it back."""
    return JobRecord(
        **shared(job, JobRecord),
        status=inserted.status,
        created_at=now,
        updated_at=now,
        reused_from=inserted.reused_from,
        dependencies=job.depends_on[: limits.LISTED_EDGES_MAX],
    )


class Unread(msgspec.Struct, frozen=True, gc=False):
    """The record of a job that was just stored, which is made when it is asked for."""

    job: NewJob
    inserted: Inserted
    now: Instant

    def __call__(self) -> JobRecord:
        return new_record(self.job, self.inserted, self.now)


ORDERS = ("created", "priority")


class JobFilter(TypedDict, total=False):
    """Conditions on jobs. A job must match all of them."""

    status: Status | str | None
    job_type: str | None
    queue: str | None
    subject: str | None
    worker: str | None
    tag: str | None
    created_by: str | None
    root: str | None
    content_hash: str | None


class FindOptions(JobFilter, total=False):
    """The keyword options of find."""

    order: str
    after: str | None
    limit: int


_FIND_OPTIONS = frozenset(FindOptions.__annotations__)
_TEXTS = ("job_type", "queue", "subject", "worker", "tag", "created_by", "content_hash", "after")


def query(**options: Unpack[FindOptions]) -> Query:
    if unknown := options.keys() - _FIND_OPTIONS:
        raise InvalidOption(
            f"find has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(_FIND_OPTIONS))}"
        )
    order = options.get("order", "created")
    if order not in ORDERS:
        raise InvalidOption(f'order={order!r}: use "created" or "priority"')
    limit = options.get("limit", 50)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= limits.FIND_LIMIT_MAX:
        raise InvalidOption(f"limit={limit!r}: use 1 to {limits.FIND_LIMIT_MAX:,}; longer lists come in pages")
    root = options.get("root")
    texts = {name: check_text(name, options.get(name), limits.KEY_LENGTH_MAX) for name in _TEXTS}
    return Query(
        status=_status(options.get("status")),
        root=None if root is None else ids.canonical(root),
        order=order,
        limit=limit,
        **texts,
    )


def _status(status: Status | str | None) -> Status | None:
    if status is None:
        return None
    try:
        return Status(status)
    except ValueError:
        raise InvalidOption(
            f"unknown status {status!r:.80} ({did_you_mean(str(status), tuple(Status), OTHER_NAMES)})"
        ) from None


def in_order(jobs: Sequence[NewJob]) -> list[int] | None:
    """Return positions in which each job follows the jobs of the list that it depends on or is a child of; None if
    there are no such relations."""
    tied = [job for job in jobs if job.depends_on or job.parent_job_id is not None]
    if not tied:
        return None
    here = {job.job_id for job in jobs}
    if not any(here.intersection(_needs(job)) for job in tied):
        return None
    try:
        return dependencies.order([(job.job_id, _needs(job)) for job in jobs])
    except dependencies.Cycle as cycle:
        path = " → ".join(map(str, cycle.path))
        raise DependencyCycle(f"jobs {path} of {len(jobs)} wait for one another: nothing was stored") from None


def _needs(job: NewJob) -> tuple[str, ...]:
    return job.depends_on if job.parent_job_id is None else (*job.depends_on, job.parent_job_id)
