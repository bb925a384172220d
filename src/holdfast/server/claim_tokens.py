"""The credential of a claim over HTTP: `<attempt>.<claim>.<seal>`, good for one attempt of one job.

The claim is random, or follows from the request_id that a worker chose, so that a repeated request finds its leases,
on whichever server it arrives. The seal binds it to the job and the attempt; only servers of this queue can make one.
The store keeps a third text, which follows from the claim: whoever reads a job row has no token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from holdfast.errors import ClaimLost
from holdfast.store.types import Hold

_TEXT = re.compile(r"(\d{1,18})\.([0-9a-f]{32})\.([0-9a-f]{32})", re.ASCII)
TOKEN_LENGTH_MAX = 18 + 1 + 32 + 1 + 32


class ClaimTokens:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def claim(self, key_id: str | None, worker_id: str, request_id: str | None) -> str:
        """Another key, or another worker, with the same request_id has another claim."""
        if request_id is None:
            return secrets.token_hex(16)
        return self._mac("claim", key_id or "", worker_id, request_id)

    def stored(self, claim: str) -> str:
        return self._mac("stored", claim)

    def text(self, job_id: str, attempt: int, claim: str) -> str:
        return f"{attempt}.{claim}.{self._seal(job_id, attempt, claim)}"

    def hold(self, job_id: str, text: str) -> Hold:
        """What a token is for. One of another job or attempt, or a made-up one, is no better than one that is over."""
        found = _TEXT.fullmatch(text)
        attempt, claim, seal = found.groups() if found else ("0", "", "")
        if not hmac.compare_digest(seal, self._seal(job_id, int(attempt), claim)):
            raise ClaimLost(f"the token is not that of a claim of job {job_id}: stop working on it")
        return Hold(job_id, int(attempt), self.stored(claim))

    def _seal(self, job_id: str, attempt: int, claim: str) -> str:
        return self._mac("seal", job_id, str(attempt), claim)

    def _mac(self, *parts: str) -> str:
        return hmac.new(self._secret, "\0".join(parts).encode(), hashlib.sha256).hexdigest()[:32]
