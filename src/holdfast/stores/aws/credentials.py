"""Where the keys come from: the environment, else botocore's chain of files, roles and metadata services."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.stores.aws.signing import Keys

KEPT_SECONDS = 60.0  # then botocore is asked again: it fetches new keys before old ones end


class Credentials:
    """Keys for the next request. botocore is loaded only where the environment names none: it takes 20 MB."""

    def __init__(self, profile: str | None, *, dummy: bool = False) -> None:
        self._profile = profile
        self._dummy = dummy  # for a server on this machine, which takes any
        self._source: Any = None
        self._kept: tuple[Keys, float] | None = None
        self._lock = threading.Lock()

    async def keys(self) -> Keys:
        found = self._fresh()
        return await asyncio.to_thread(self.now) if found is None else found

    def now(self) -> Keys:
        """The same for those who may block."""
        with self._lock:
            found = self._fresh()
            if found is None:
                found = self._ask()
                self._kept = (found, time.monotonic() + KEPT_SECONDS)
            return found

    def forget(self) -> None:
        """The server says that they have ended: fetch new ones."""
        self._kept = None
        self._source = None

    def _fresh(self) -> Keys | None:
        kept = self._kept
        return kept[0] if kept is not None and time.monotonic() < kept[1] else None

    def _ask(self) -> Keys:
        if self._profile is None and (found := from_environment()) is not None:
            return found
        if self._source is None:
            self._source = _botocore(self._profile, optional=self._dummy)
        if self._source is None:
            if self._dummy:
                return Keys("holdfast", "holdfast")
            raise ConfigurationError(
                "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
            )
        frozen = self._source.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)


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
