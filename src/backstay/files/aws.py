"""AWS credentials, request signatures for DynamoDB (version 4), and TLS settings.

Keys come from the environment, else from botocore's chain of files, roles and metadata services.

Why not botocore's signer: a call would take 1.4 times the CPU, and every worker would load botocore, 10 MB, even where
the environment has the keys (figures in docs/explanation/dynamodb.md). The tests compare these signatures with
botocore's. S3 does without this module's signer: botocore's own client signs there.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

import msgspec

from backstay.core.checks import how_to_install
from backstay.errors import ConfigurationError, StoreUnavailable

SERVICE = "dynamodb"


class Keys(msgspec.Struct, frozen=True):
    """The keys that sign a request. They never appear in a message."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key[:4]}…)"


class Signer:
    """Signs requests for one region. Caches the derived key of the day, which is four of five hashes."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._kept: tuple[str, str, bytes] = ("", "", b"")

    def headers(self, keys: Keys, now: datetime, host: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return all headers of a POST to the root: those given, and the signature."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        signed = {name.lower(): value.strip() for name, value in headers.items()}
        signed |= {"host": host, "x-amz-date": stamp}
        if keys.session_token is not None:
            signed["x-amz-security-token"] = keys.session_token
        names = sorted(signed)
        listed = ";".join(names)
        lines = (f"{name}:{signed[name]}" for name in names)
        canonical = "\n".join(["POST", "/", "", *lines, "", listed, hashlib.sha256(body).hexdigest()])
        day = stamp[:8]
        scope = f"{day}/{self._region}/{SERVICE}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        proof = hmac.new(self._key(keys.secret_key, day), text.encode(), hashlib.sha256).hexdigest()
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={listed}, Signature={proof}"
        )
        return signed

    def _key(self, secret: str, day: str) -> bytes:
        if self._kept[:2] != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, SERVICE, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept = (secret, day, key)
        return self._kept[2]


NO_CREDENTIALS = "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
KEPT_SECONDS = 60.0  # after this, ask botocore again: it fetches new keys before the old ones expire


class Credentials:
    """The keys for the next request. botocore is loaded only if the environment has none: it takes 20 MB."""

    def __init__(self, profile: str | None, *, dummy: bool = False) -> None:
        self._profile = profile
        self._dummy = dummy  # for a local server, which accepts any
        self._source: Any = None
        self._were_there = False
        self._kept: tuple[Keys, float] | None = None
        self._lock = threading.Lock()
        self._fetch: Future[Keys] | None = None

    def at_hand(self) -> Keys | None:
        """Return keys that need not be fetched, if there are any."""
        kept = self._kept
        if kept is not None and time.monotonic() < kept[1]:
            return kept[0]
        return from_environment() if self._profile is None else None

    async def keys(self) -> Keys:
        """Return the keys without blocking. A caller may stop waiting; others continue to wait for the same fetch. It
        runs in its own thread, because handlers may occupy all threads of the event loop."""
        found = self.at_hand()
        if found is not None:
            return found
        if self._fetch is None or self._fetch.done():
            self._fetch = _in_a_thread(self.now)
        return await asyncio.wrap_future(self._fetch)

    def now(self) -> Keys:
        """Return the keys, blocking. Raises StoreUnavailable if they cannot be fetched now but perhaps later."""
        with self._lock:
            found = self.at_hand()
            if found is None:
                found = self._ask()
                self._kept = (found, time.monotonic() + KEPT_SECONDS)
                self._were_there = True
            return found

    def forget(self) -> None:
        """Drop the cached keys: the server says that they have expired."""
        self._kept = None
        self._source = None

    def _ask(self) -> Keys:
        if self._source is None:
            self._source = _botocore(self._profile, optional=self._dummy)
        if self._source is None:
            if self._dummy:
                return Keys("backstay", "backstay")
            if self._were_there:  # a metadata service that does not respond looks like none
                raise StoreUnavailable("AWS credentials cannot be fetched at the moment; it is safe to retry")
            raise ConfigurationError(NO_CREDENTIALS)
        try:
            frozen = self._source.get_frozen_credentials()
        except Exception as error:  # fetching a role's keys can raise errors that are not botocore's
            raise StoreUnavailable(f"AWS credentials cannot be fetched ({error}); it is safe to retry") from None
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)


def _in_a_thread(fetch: Callable[[], Keys]) -> Future[Keys]:
    future: Future[Keys] = Future()
    future.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel it for the others

    def run() -> None:
        try:
            future.set_result(fetch())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="backstay-keys", daemon=True).start()
    return future


def from_environment() -> Keys | None:
    access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        return None
    return Keys(access, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


def _botocore(profile: str | None, *, optional: bool) -> Any:
    if optional and profile is None and not _anything_is_set_up():
        return None  # otherwise a local server would wait for a metadata service that does not exist
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        if optional:
            return None
        raise ConfigurationError(
            f"botocore is not installed: {how_to_install('dynamodb')}, or set AWS_ACCESS_KEY_ID"
        ) from None
    try:
        return botocore.session.Session(profile=profile).get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"AWS credentials: {error}") from None


def _anything_is_set_up() -> bool:
    folder = os.path.expanduser("~/.aws")
    return os.path.exists(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials"))


def region_of(profile: str | None) -> str | None:
    """Return the region of the environment, else that of the profile, if botocore is installed to read it."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        return None
    try:
        found = botocore.session.Session(profile=profile).get_config_variable("region")
    except BotoCoreError as error:
        raise ConfigurationError(f"AWS profile: {error}") from None
    return None if found is None else str(found)


def tls() -> ssl.SSLContext:
    """Return a TLS context with the certificates of this machine, or those that AWS_CA_BUNDLE names."""
    return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
