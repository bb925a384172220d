"""What comes in: bodies of forms. JSON bodies have been checked by the gate before a route sees them."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import Request

from holdfast.server.problems import Problem

FORM_FIELDS_MAX = 5_000  # a bulk of a thousand ticked jobs, and a large form beside it
FORM = "application/x-www-form-urlencoded"


class Form(dict[str, list[str]]):
    """The fields of a form, each with its values in order."""

    def one(self, name: str, default: str = "") -> str:
        return self.get(name, [default])[0]


async def form(request: Request) -> Form:
    """The fields of an urlencoded form; no file comes with those."""
    raw = await request.body()
    try:
        pairs = parse_qsl(
            raw.decode(), keep_blank_values=True, strict_parsing=bool(raw), errors="strict", max_num_fields=FORM_FIELDS_MAX
        )
    except ValueError:
        raise Problem(422, "invalid-request", f"this is not a form: send up to {FORM_FIELDS_MAX:,} fields") from None
    found = Form()
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
