"""Changes made from a page: who makes them, and what is said where one is refused."""

from __future__ import annotations

from fastapi import Request, Response

from holdfast.dashboard import forms, frame
from holdfast.dashboard.forms import Form
from holdfast.errors import DedupConflict, IllegalTransition, InvalidSubmission, QueueFull, VersionConflict
from holdfast.server.principals import Principal

# What a person can do something about, there and then.
REFUSALS = (IllegalTransition, VersionConflict, DedupConflict, InvalidSubmission, QueueFull)


def creator(who: Principal) -> str:
    """Whose job it is that comes from a form: a key's, or where there are no keys, ours."""
    return who.name if who.key_id is not None else "dashboard"


def refused(request: Request, form: Form, error: Exception, otherwise: str) -> Response:
    """Back to where the form was, with what is wrong."""
    words = str(error)
    return frame.redirect_to(
        request, forms.back(request, form, otherwise), f"{words[:1].upper()}{words[1:]}.", kind="bad"
    )
