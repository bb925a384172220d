"""A request as the gate looks at it: its head, before anything of it is believed."""

from __future__ import annotations

import re
import secrets
from functools import cached_property
from urllib.parse import unquote_plus

from starlette.requests import cookie_parser
from starlette.types import Scope

from holdfast import keys
from holdfast.server.gating import hosts
from holdfast.server.principals import Via
from holdfast.server.problems import Problem

DASHBOARD = "/dashboard"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_KEY_PARAMETERS = re.compile(r"(?:^|[&;])(?:x-)?(?:api[_-]?key|access[_-]?token|authorization)=", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Incoming:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.root = str(scope.get("root_path", "")).rstrip("/")
        self.path = below(scope["path"], self.root)
        self.is_dashboard = self.path == DASHBOARD or self.path.startswith(f"{DASHBOARD}/")
        self.client: str | None = scope["client"][0] if scope.get("client") else None
        self.request_id = self._request_id()

    @property
    def via(self) -> Via:
        return "dashboard" if self.is_dashboard else "http"

    @property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS

    def header(self, name: bytes) -> str | None:
        """A header that may stand there once: of two, we and a proxy before us could believe another."""
        found = [value for each, value in self.scope["headers"] if each == name]
        if len(found) > 1:
            raise Problem(400, "repeated-header", f"send {name.decode()} once")
        return found[0].decode("latin-1").strip() if found else None

    @cached_property
    def is_local(self) -> bool:
        """Whether it comes from this machine, addressed to it, and nobody in between speaks for another. Names that
        others call it by do not count: a proxy on this machine passes them on."""
        name = hosts.name_of(self.header(b"host"))
        return (
            self.client is not None
            and hosts.is_loopback(self.client)
            and name is not None
            and hosts.is_loopback(name)
            and not hosts.is_forwarded([each for each, _ in self.scope["headers"]])
        )

    def cookie(self, name: str) -> str | None:
        text = "; ".join(value.decode("latin-1") for each, value in self.scope["headers"] if each == b"cookie")
        return cookie_parser(text).get(name) if text else None

    @property
    def has_key_in_url(self) -> bool:
        """A URL is kept in logs, in histories and by proxies: what stands there is no secret any more."""
        query = self.scope["query_string"].decode("latin-1")
        if query and _KEY_PARAMETERS.search(query):
            return True
        text = f"{self.scope['path']}?{unquote_plus(query)}"
        return "hf_" in text and keys.masked(text) != text

    @property
    def shown_path(self) -> str:
        """The path for a log: one line, nothing that drives a terminal, no query, no key."""
        if self.has_key_in_url:
            return "(left out: it had a key in it)"
        return str(self.scope["path"]).encode("ascii", "backslashreplace").decode().translate(_ESCAPED)

    def _request_id(self) -> str:
        for each, value in self.scope["headers"]:
            text = str(value, "latin-1") if each == b"x-request-id" else ""
            if _REQUEST_ID.fullmatch(text):
                return text
        return secrets.token_hex(8)


_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


def below(path: str, root: str) -> str:
    """Below the prefix that we are mounted at; a server may or may not have taken that off."""
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path
