"""A line per request: who asked for what, and what became of it. No query, no body, no header, no key."""

from __future__ import annotations

import logging

from holdfast.server.gating.incoming import Incoming
from holdfast.server.principals import Principal

log = logging.getLogger("holdfast.access")


def write(request: Incoming, principal: Principal | None, status: int | None, seconds: float) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    fields = {
        "method": request.method if request.method.isalpha() else "?",
        "path": request.shown_path,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "client": request.client,
        "key_id": None if principal is None else principal.key_id,
        "request_id": request.request_id,
    }
    said = "gone" if status is None else status
    log.info(
        "%s %s %s, %s ms, from %s%s (%s)",
        fields["method"],
        fields["path"],
        said,
        fields["ms"],
        fields["client"],
        "" if fields["key_id"] is None else f" with key {fields['key_id']}",
        fields["request_id"],
        extra={"fields": fields},
    )
