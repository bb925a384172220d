"""Requests to a server: repeated where that is safe, with its problems mapped back to errors of Backstay."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from backstay import codec, errors
from backstay.errors import PROBLEM_MEDIA_TYPE, PROBLEMS, BackstayError

TRIES = 6  # about eight seconds, enough for a restart of the server
PAUSE_SECONDS = 0.25
PAUSE_SECONDS_MAX = 5.0
TIMEOUT_SECONDS = 30.0
_AGAIN = frozenset({429, 502, 503, 504})


class NotRegistered(BackstayError):
    """The server has removed this worker because it was silent for too long: it registers again."""


# The first class of each problem; those that only a client encounters follow.
_KINDS: dict[str, type[BackstayError]] = {}
for _kind, (_, _slug) in PROBLEMS.items():
    _KINDS.setdefault(_slug, _kind)
_KINDS["worker-not-found"] = NotRegistered
_BY_STATUS: dict[int, type[BackstayError]] = {
    401: errors.ConfigurationError,
    403: errors.ConfigurationError,
    404: errors.JobNotFound,
    408: errors.StoreUnavailable,
    409: errors.IllegalTransition,
    412: errors.VersionConflict,
    413: errors.PayloadTooLarge,
    421: errors.ConfigurationError,
    429: errors.StoreBusy,
}


class Requests:
    def __init__(self, url: str, key: str | None, make_http: Callable[[], httpx.AsyncClient] | None) -> None:
        self._http = httpx.AsyncClient(timeout=TIMEOUT_SECONDS) if make_http is None else make_http()
        self._given = url, key, make_http
        self._url = url.rstrip("/")
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def another(self) -> Requests:
        """Return requests to the same server with connections of their own, for another event loop."""
        return Requests(*self._given)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        tries: int = TRIES,
    ) -> Any:
        """Send a request and return the response document. It may be sent several times: every request is safe to
        repeat."""
        response = await self.response(method, path, body, params=params, headers=headers, timeout=timeout, tries=tries)
        if not response.content:
            return None
        try:
            return codec.decode(response.content)
        except msgspec.MsgspecError:
            raise _foreign(response) from None

    async def response(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        tries: int = TRIES,
    ) -> httpx.Response:
        request = self._request(method, path, body, params, headers, timeout)
        for left in range(tries - 1, -1, -1):
            try:
                response = await self._http.send(request)
            except httpx.RequestError as error:
                if not left:
                    raise unreachable(self._url, error) from error
                await asyncio.sleep(_pause(tries - left))
                continue
            if response.status_code in _AGAIN and left:
                await asyncio.sleep(_said_pause(response, tries - left))
                continue
            if response.is_success:
                return response
            raise error_of(response)
        raise AssertionError("unreachable")

    def stream(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        """`async with requests.stream(path) as response:`, without a timeout for the end."""
        return self._http.stream(
            "GET",
            f"{self._url}{path}",
            headers={**self._headers, **(headers or {})},
            timeout=httpx.Timeout(TIMEOUT_SECONDS, read=60.0),
        )

    def unreachable(self, error: Exception) -> BackstayError:
        return unreachable(self._url, error)

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        timeout: float,
    ) -> httpx.Request:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else codec.encode(body)
        sent = {**self._headers, **(headers or {})}
        if content is not None:
            sent["Content-Type"] = "application/json"
        return self._http.build_request(
            method, f"{self._url}{path}", content=content, params=given, headers=sent, timeout=timeout
        )


def error_of(response: httpx.Response) -> BackstayError:
    """Return the error for a problem document of the server. What has none was not sent by Backstay."""
    if not response.headers.get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
        return _foreign(response)
    try:
        document = codec.decode(response.content, type=dict[str, Any])
    except msgspec.MsgspecError:
        document = {}
    return of_problem(document, response.status_code)


_KEYS_NEEDED = (401, 403, 407)


def _foreign(response: httpx.Response) -> BackstayError:
    """Return the error for a response that Backstay did not send: a proxy that answers 404 while the server restarts
    does not mean that the job does not exist."""
    kind = errors.ConfigurationError if response.status_code in _KEYS_NEEDED else errors.StoreUnavailable
    return kind(
        f"{response.url.copy_with(query=None)} answered with status {response.status_code}, but not as Backstay does:"
        " is this the address of its server, and is that running?"
    )


def of_problem(document: Mapping[str, Any], status: int) -> BackstayError:
    slug = str(document.get("type", "")).removeprefix("/problems/")
    said = document.get("detail") or document.get("title") or f"the server answered with status {status}"
    usual = errors.StoreUnavailable if status >= 500 else errors.InvalidOption
    return _KINDS.get(slug, _BY_STATUS.get(status, usual))(str(said))


def unreachable(url: str, error: Exception) -> BackstayError:
    return errors.StoreUnavailable(
        f"the server at {url} cannot be reached ({type(error).__name__}); it is safe to retry"
    )


def _pause(tried: int) -> float:
    return random.uniform(0.5, 1.0) * min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2.0 ** (tried - 1))


def _said_pause(response: httpx.Response, tried: int) -> float:
    said = str(response.headers.get("retry-after", ""))
    return min(PAUSE_SECONDS_MAX, float(said)) if said.isdecimal() else _pause(tried)
