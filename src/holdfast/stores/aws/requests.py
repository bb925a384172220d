"""Signed requests that block, from any thread; connections are kept."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.limits import LEASE_SECONDS
from holdfast.stores.aws.credentials import Credentials
from holdfast.stores.aws.signing import Signer, canonical_query, sha256
from holdfast.stores.aws.tls import tls

REPLY_SECONDS = 20.0
PATIENCE_SECONDS = LEASE_SECONDS  # how long a request waits for a service that is away: then the claim is lost, too
FREE_MAX = 8


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Requests:
    def __init__(self, service: str, region: str, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._netloc = parts.netloc
        self._tls = tls() if parts.scheme == "https" else None
        self._signer = Signer(service, region)
        self._credentials = Credentials(None, dummy=self._host in ("127.0.0.1", "localhost", "::1"))
        self._lock = threading.Lock()
        self._free: list[http.client.HTTPConnection] = []
        self._closed = False

    def ask(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        """Until it is answered, or patience ends. Every request may be repeated: a second put is the same put."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = 0.05
        while True:
            try:
                answer = self._try(method, path, query, headers, body)
                if answer.status < 500 and answer.status != 429:
                    return answer
                why = f"HTTP {answer.status}"
            except (OSError, http.client.HTTPException, StoreUnavailable) as error:
                why = str(error) or type(error).__name__
            if time.monotonic() + pause > deadline:
                raise StoreUnavailable(f"{self._netloc} does not answer ({why}): repeating is safe")
            time.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 2.0)

    def _try(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        digest = sha256(body)
        signed = self._signer.headers(
            self._credentials.now(),
            datetime.now(UTC),
            method,
            self._netloc,
            path,
            query,
            {**headers, "x-amz-content-sha256": digest},
            digest,
        )
        target = quote(path, safe="/-_.~") + (f"?{canonical_query(query)}" if query else "")
        connection = self._take()
        try:
            connection.request(method, target, body=body, headers=signed)
            reply = connection.getresponse()
            headers = {name.lower(): value for name, value in reply.getheaders()}
            answer = Answer(reply.status, reply.read(), headers)
        except BaseException:
            connection.close()
            raise
        if reply.will_close:
            connection.close()
        else:
            self._give_back(connection)
        return answer

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._free:
                return self._free.pop()
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=REPLY_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=REPLY_SECONDS, context=self._tls)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._free) < FREE_MAX:
                self._free.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            free, self._free, self._closed = self._free, [], True
        for connection in free:
            connection.close()
