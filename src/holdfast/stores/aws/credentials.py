"""Where the keys come from: the environment, else botocore's chain of files, roles and metadata services."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.errors import ConfigurationError, StoreUnavailable
from holdfast.stores.aws.signing import Keys

KEPT_SECONDS = 60.0  # then botocore is asked again: it fetches new keys before old ones end


class Credentials:
    """Keys for the next request. botocore is loaded only where the environment names none: it takes 20 MB."""

    def __init__(self, profile: str | None, *, dummy: bool = False) -> None:
        self._profile = profile
        self._dummy = dummy  # for a server on this machine, which takes any
        self._source: Any = None
        self._were_there = False
        self._kept: tuple[Keys, float] | None = None
        self._lock = threading.Lock()
        self._fetch: Future[Keys] | None = None

    def at_hand(self) -> Keys | None:
        """Those that need not be fetched."""
        kept = self._kept
        if kept is not None and time.monotonic() < kept[1]:
            return kept[0]
        return from_environment() if self._profile is None else None

    async def keys(self) -> Keys:
        """For those who may not block. However long it takes to fetch them: who waits may give up, and a second one
        waits for the same. The thread is its own, because handlers may hold all those of the event loop."""
        found = self.at_hand()
        if found is not None:
            return found
        if self._fetch is None or self._fetch.done():
            self._fetch = _in_a_thread(self.now)
        return await asyncio.wrap_future(self._fetch)

    def now(self) -> Keys:
        """The same for those who may block. StoreUnavailable: they cannot be fetched now, and maybe later."""
        with self._lock:
            found = self.at_hand()
            if found is None:
                found = self._ask()
                self._kept = (found, time.monotonic() + KEPT_SECONDS)
                self._were_there = True
            return found

    def forget(self) -> None:
        """The server says that they have ended: fetch new ones."""
        self._kept = None
        self._source = None

    def _ask(self) -> Keys:
        if self._source is None:
            self._source = _botocore(self._profile, optional=self._dummy)
        if self._source is None:
            if self._dummy:
                return Keys("holdfast", "holdfast")
            if self._were_there:  # a metadata service that does not answer looks like none
                raise StoreUnavailable("AWS keys cannot be fetched at the moment: repeating is safe")
            raise ConfigurationError(
                "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
            )
        try:
            frozen = self._source.get_frozen_credentials()
        except Exception as error:  # whatever the way to a role's keys raises, which is not botocore's alone
            raise StoreUnavailable(f"AWS keys cannot be fetched ({error}): repeating is safe") from None
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)


def _in_a_thread(fetch: Callable[[], Keys]) -> Future[Keys]:
    future: Future[Keys] = Future()
    future.set_running_or_notify_cancel()  # nobody who gives up waiting can cancel it for the others

    def run() -> None:
        try:
            future.set_result(fetch())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="holdfast-keys", daemon=True).start()
    return future


def from_environment() -> Keys | None:
    access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        return None
    return Keys(access, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


def _botocore(profile: str | None, *, optional: bool) -> Any:
    if optional and profile is None and not _anything_is_set_up():
        return None  # or a local server would wait for a metadata service that is not there
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        if optional:
            return None
        raise ConfigurationError(
            'botocore is not installed: pip install "holdfast[dynamodb]", or set AWS_ACCESS_KEY_ID'
        ) from None
    try:
        return botocore.session.Session(profile=profile).get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"AWS credentials: {error}") from None


def _anything_is_set_up() -> bool:
    folder = os.path.expanduser("~/.aws")
    return os.path.exists(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials"))


def region_of(profile: str | None) -> str | None:
    """The region of the environment, else of the profile, where botocore is there to read it."""
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
