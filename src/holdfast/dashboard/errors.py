"""Errors as pages: what went wrong, and what to do next. What nobody foresaw is told in the same words always."""

from __future__ import annotations

import logging

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from markupsafe import escape
from starlette.exceptions import HTTPException

from holdfast.dashboard import assets, frame
from holdfast.dashboard.forms import FormRefused
from holdfast.dashboard.routing import pages
from holdfast.errors import HoldfastError
from holdfast.server import mistakes, problems
from holdfast.server.guarding import needs
from holdfast.server.problems import Problem

log = logging.getLogger("holdfast")

_SAID = {
    404: ("There is no such page", "It may have been removed, or it belongs to a queue that this key does not see."),
    405: ("This page takes no such request", "Go back and use the form on the page."),
    413: ("That is too large", "Send less at once."),
    422: ("Something in the address or the form does not fit", "Go back, and check what you filled in."),
}

_BROKEN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Something went wrong · Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{style}">
<main>
  <h1>Something went wrong</h1>
  <p class="lead">Load the page again. If it stays so, the log of the server says why.</p>
  <p><a class="button" href="{home}">To the overview</a></p>
</main>
"""

router = pages()


def answer(request: Request, error: Exception) -> Response:
    """The page for whatever a route raised."""
    problem = _problem(request, error)
    if problem.status == 401:
        return _log_in(request)
    if problem.status == 500:
        return _broken(request)
    title, advice = _SAID.get(problem.status, (problem.title, ""))
    if isinstance(error, HoldfastError | Problem):
        title, advice = problem.title, problem.detail or advice
    page = frame.render(request, "error.html", status=problem.status, said=title, advice=_sentence(advice))
    page.headers.update(problem.headers)
    return page


def _broken(request: Request) -> Response:
    """What made a page fail may be in its templates, so that this one takes none."""
    page = _BROKEN.format(style=escape(assets.address(request, "dashboard.css")), home=escape(frame.url(request, "/")))
    return HTMLResponse(page, 500, headers={"Cache-Control": "no-store"})


def _problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case FormRefused():
            return Problem(403, "form-refused", str(error), title="This form was not accepted")
        case HoldfastError():
            found = problems.of_error(error, to=frame.principal_of(request))
            if found.status == 500:
                log.error("a page of the dashboard failed: %s", error)
            return found
        case HTTPException():
            return Problem(error.status_code, "http")
        case RequestValidationError():
            return Problem(422, "invalid-request")
        case _:
            mistakes.tell("a page of the dashboard", error)
            return Problem(500, "internal")


def _log_in(request: Request) -> Response:
    """To the door, with the way back; what a form held is lost, so that one goes to the beginning."""
    wanted = frame.PageOf(request, None).here if request.method == "GET" else None
    return frame.redirect(request, "/login", next=wanted if wanted != frame.url(request, "/") else None)


def _sentence(text: str) -> str:
    if not text:
        return text
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?', '…')) else '.'}"


@router.get("/{path:path}", dependencies=[Depends(needs("read"))])
async def unknown(request: Request, path: str) -> Response:
    """What no page answers. Those who have not logged in do not learn which pages there are."""
    raise HTTPException(404)
