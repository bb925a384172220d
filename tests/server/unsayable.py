"""What the API refuses although its document allows it, since no schema can say it: which sentence, where, and why.

Everything else that the document allows has to be taken. Schemathesis goes by the status alone; the check below, which
it runs as a hook, holds each such answer against the sentence too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import schemathesis

ACCEPTED = ("2xx", "3xx", "401", "403", "404", "409", "429")  # schemathesis' own, without 5xx


@dataclass(frozen=True, slots=True)
class Unsayable:
    operations: tuple[str, ...]
    status: int
    says: str  # within the detail of the problem
    why: str


FIND = ("GET /jobs", "GET /jobs/anything", "GET /jobs/letter", "GET /jobs/{id_or_type}")
ROWS = ("GET /results/{table}", "GET /results/{table}/latest")
SUBMIT_ANY = "POST /jobs/{id_or_type}"
SUBMIT = ("POST /jobs/anything", "POST /jobs/letter", SUBMIT_ANY)
SCHEDULE = "PUT /schedules/{name}"
REGISTER = "POST /workers/register"
RETRY, PATCH = "POST /jobs/{job_id}/retry", "PATCH /jobs/{id_or_type}"
CANCEL = ("DELETE /jobs/{id_or_type}", "DELETE /jobs/{job_type}/{job_id}")
UNMARK = "POST /types/{job_type}/unmark"
RERUN, PAUSE = "POST /jobs/{job_id}/rerun", "POST /queues/{name}/pause"
PAUSE_TYPE = "POST /types/{job_type}/pause"
HANDLED = tuple(f"POST /jobs/{{job_id}}/{each}" for each in ("complete", "output", "step"))
ANY_JSON = (*SUBMIT, SCHEDULE, REGISTER, "POST /jobs/batch", *HANDLED)

_BY_TYPE = "which options and which payload fit depends on the type, which is named beside them"
_MANY = "with one more rule between fields, schemathesis makes no requests from the schema any more"
UNSAYABLE = (
    Unsayable(FIND, 422, "is not a cursor of this search", "a cursor belongs to the search that gave it"),
    Unsayable(ROWS, 422, "is not a cursor", "a cursor belongs to the search that gave it"),
    Unsayable(ROWS, 422, "has no index of its subject", "which tables have one is what their models declare"),
    Unsayable(
        SUBMIT, 422, "job_id and Idempotency-Key are mutually exclusive", "one stands in the body, one in a header"
    ),
    Unsayable(SUBMIT, 422, "depends on itself", "two fields must not have the same value"),
    Unsayable(SUBMIT, 422, "depends_on names the parent", "two fields must not have the same value"),
    Unsayable((*SUBMIT, PATCH), 422, "more than ten years ahead", "whether a moment is near depends on the day"),
    Unsayable(
        (PAUSE, PAUSE_TYPE), 422, "use a time ahead, within ten years", "whether a moment is near depends on the day"
    ),
    Unsayable(SUBMIT, 422, 'debounce_max needs dedup="replace"', _MANY),
    Unsayable(SUBMIT, 422, "dedup_for needs a dedup_key or dedup_by", _MANY),
    Unsayable(SUBMIT, 422, 'dedup="replace" needs', _MANY),
    Unsayable(SUBMIT, 422, 'dedup="replace" and a content hash exclude each other', _MANY),
    Unsayable(SUBMIT, 422, "debounce_max is shorter than the delay", "two fields are compared"),
    Unsayable((SUBMIT_ANY, SCHEDULE), 422, "has no global_concurrency", _BY_TYPE),
    Unsayable((SUBMIT_ANY, SCHEDULE), 422, "has no rate", _BY_TYPE),
    Unsayable((SUBMIT_ANY, SCHEDULE), 422, "payload of ", _BY_TYPE),
    Unsayable((SUBMIT_ANY, SCHEDULE), 422, "reuse needs a content_hash", _BY_TYPE),
    Unsayable((SUBMIT_ANY, SCHEDULE), 422, "in code, which is not here", _BY_TYPE),
    Unsayable((SCHEDULE,), 422, "cron=", "a calendar has more rules than a pattern"),
    Unsayable((SCHEDULE,), 422, "timezone=", "which there are depends on the machine"),
    Unsayable((REGISTER,), 422, "cannot be used", "a schema of payloads has limits of size, depth and references"),
    Unsayable((UNMARK,), 422, "is not a mark of", "which marks a type has is what was announced"),
    Unsayable((UNMARK,), 422, "still marks", "which marks the code has is what was announced last"),
    Unsayable(ANY_JSON, 400, "the body cannot be read", "free JSON: no NUL, 64 bits, 64 levels, at any depth"),
    Unsayable((*CANCEL, PATCH, RETRY), 412, "version", "whether an ETag is the latest"),
    Unsayable((*CANCEL, PATCH, RETRY, RERUN, PAUSE), 422, "this prefix marks reruns", "words that mean something"),
)


def configuration() -> str:
    """For schemathesis: these statuses, at these operations, and no other."""
    statuses: dict[str, set[int]] = {}
    for each in UNSAYABLE:
        for operation in each.operations:
            statuses.setdefault(operation, set()).add(each.status)
    return "\n".join(
        f'[[operations]]\ninclude-name = "{operation}"\n'
        f"checks.positive_data_acceptance.expected-statuses = {[*ACCEPTED, *map(str, sorted(extra))]}\n"
        for operation, extra in sorted(statuses.items())
    )


@schemathesis.check
def refused_only_for_what_no_schema_can_say(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in (400, 412, 422):
        return
    if response.request.method != case.operation.method.upper():
        return  # a probe of another method
    detail = str(response.json().get("detail"))
    known = [each for each in UNSAYABLE if each.status == response.status_code and each.says in detail]
    label = case.operation.label
    assert any(label in each.operations for each in known), f"{label}: {response.status_code} {detail}"
