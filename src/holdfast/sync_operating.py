"""The part of the blocking face for those who run it: queues, figures, check-up, keys and the trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast import auditing, keys
from holdfast.app import Holdfast as AsyncHoldfast
from holdfast.auditing import AuditTrail
from holdfast.granting import Audited
from holdfast.keys import CreatedKey, KeyInfo
from holdfast.looped import Looped
from holdfast.queues import Queue
from holdfast.stats import Stats, TotalFigures
from holdfast.store.types import ApiKey, Finding


class SyncOperating(Looped):
    inner: AsyncHoldfast

    # Queues

    def queues(self) -> list[Queue]:
        return self._call(self.inner.queues())

    def pause_queue(self, name: str, *, by: str | None = None, reason: str | None = None) -> Queue:
        return self._call(self.inner.pause_queue(name, by=by, reason=reason))

    def resume_queue(self, name: str) -> Queue:
        return self._call(self.inner.resume_queue(name))

    def limit_queue(self, name: str, max_pending: int | None) -> Queue:
        return self._call(self.inner.limit_queue(name, max_pending))

    # Figures, check-up, retention

    def stats(self, minutes: int = 60) -> Stats:
        return self._call(self.inner.stats(minutes))

    def totals(self) -> list[TotalFigures]:
        return self._call(self.inner.totals())

    def check_up(self) -> list[Finding]:
        return self._call(self.inner.check_up())

    def purge(self, *, older_than: float | timedelta | None = None, job_types: list[str] | None = None) -> int:
        return self._call(self.inner.purge(older_than=older_than, job_types=job_types))

    # Keys and sessions

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        queues: Sequence[str] = (),
        expires_in: float | timedelta | None = None,
        by: str | None = None,
        env: str = keys.ENV,
    ) -> CreatedKey:
        return self._call(self.inner.create_key(name, scopes, queues=queues, expires_in=expires_in, by=by, env=env))

    def api_keys(self) -> list[KeyInfo]:
        return self._call(self.inner.api_keys())

    def check_key(self, text: str) -> KeyInfo | None:
        return self._call(self.inner.check_key(text))

    def revoke_key(self, key_id: str, *, by: str | None = None) -> KeyInfo:
        return self._call(self.inner.revoke_key(key_id, by=by))

    def remove_key(self, key_id: str) -> None:
        return self._call(self.inner.remove_key(key_id))

    def open_session(self, key: ApiKey) -> CreatedKey:
        return self._call(self.inner.open_session(key))

    def close_session(self, key_id: str) -> None:
        return self._call(self.inner.close_session(key_id))

    # The trail

    @contextmanager
    def audited(
        self,
        action: str,
        target: str,
        *,
        by: str,
        via: str,
        before: Any = None,
        remote: str | None = None,
        failure: Callable[[Exception], str] = auditing.failure,
    ) -> Iterator[Audited]:
        change = self.inner.audited(action, target, by=by, via=via, before=before, remote=remote, failure=failure)
        entry = self._call(change.__aenter__())
        try:
            yield entry
        except BaseException as error:
            self._call(change.__aexit__(type(error), error, error.__traceback__))
            raise
        self._call(change.__aexit__(None, None, None))

    def audit_trail(self, after: str | None = None, limit: int = 50) -> AuditTrail:
        return self._call(self.inner.audit_trail(after, limit))
