"""Who asks: from what a request carries to a principal, or to the reason why there is none."""

from __future__ import annotations

from holdfast import keys, limits
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.server import problems
from holdfast.server.gating import hosts, origins
from holdfast.server.gating.buckets import Buckets
from holdfast.server.gating.incoming import Incoming
from holdfast.server.gating.keyring import KeyRing, Known
from holdfast.server.principals import Principal, local
from holdfast.server.problems import Problem
from holdfast.store.types import ApiKey

_RATE_MAX = 1e9  # is none: buckets do not count to infinity
SESSION_COOKIE = "holdfast_session"


class Authenticator:
    def __init__(self, app: Holdfast, ring: KeyRing, *, rate: float, failures_burst: int) -> None:
        self._app = app
        self._ring = ring
        rate = min(rate, _RATE_MAX)
        self._rates = Buckets(rate, max(1.0, 2 * rate), limits.KEYS_MAX)
        self._failures = Buckets(limits.HTTP_FAILURES_PER_SECOND, failures_burst, limits.HTTP_CLIENTS_MAX)
        self._looks = Buckets(limits.HTTP_FAILURES_PER_SECOND, failures_burst, limits.HTTP_CLIENTS_MAX)

    async def principal(self, request: Incoming) -> Principal:
        """Whoever asks; a Problem where that is nobody."""
        text = _key_in_header(request)
        known = await self._ring.known()
        if text is not None:
            return await self._holder(request, text, known)
        session = request.cookie(SESSION_COOKIE) if request.is_dashboard else None
        key = None if session is None else await self._checked(request, session, known, is_session=True)
        if key is not None:
            return self._admitted(request, key)
        return self._keyless(request, known)

    async def principal_if_any(self, request: Incoming) -> Principal | None:
        """The same where nobody is needed. A store that is away must not take down what works without it."""
        known = self._ring.at_hand()
        carries = _key_in_header(request) is not None or (request.is_dashboard and request.cookie(SESSION_COOKIE))
        if known is None and not carries:
            return None
        try:
            return await self.principal(request)
        except (Problem, HoldfastError):
            return None

    def count_failure(self, request: Incoming) -> None:
        self._failures.take(hosts.network(request.client), self._app.clock.monotonic())

    def check_failures(self, request: Incoming) -> None:
        client, now = hosts.network(request.client), self._app.clock.monotonic()
        if not self._failures.has_one(client, now):
            wait = self._failures.wait_seconds(client, now)
            raise Problem(
                429,
                "too-many-failures",
                "too many wrong keys from this address: wait, then try again",
                retry_after=wait,
            )

    async def _holder(self, request: Incoming, text: str, known: Known) -> Principal:
        key = await self._checked(request, text, known, is_session=False)
        if key is None:
            self.check_failures(request)
            self.count_failure(request)
            raise problems.unauthenticated("this is no key of this server, or it has been revoked or has expired")
        return self._admitted(request, key)

    async def _checked(self, request: Incoming, text: str, known: Known, *, is_session: bool) -> ApiKey | None:
        """The key of a text. One that does not fit what is known is looked for in the store, whatever is wrong with it:
        it may be new, and how long a refusal takes tells nobody which ids there are."""
        parsed = keys.parse(text)
        if parsed is None:
            return None
        now = self._app.clock.now()
        key = keys.check(parsed, known, now)
        if key is None and self._looks.take(hosts.network(request.client), self._app.clock.monotonic()):
            key = keys.check(parsed, await self._ring.with_one(parsed.key_id), now)
        return key if key is not None and (key.of is not None) == is_session else None

    def _admitted(self, request: Incoming, key: ApiKey) -> Principal:
        name, now = key.of or key.key_id, self._app.clock.monotonic()
        if not self._rates.take(name, now):
            wait = self._rates.wait_seconds(name, now)
            raise Problem(429, "too-many-requests", "this key asks too often: wait, then go on", retry_after=wait)
        return Principal(
            name=key.name,
            scopes=frozenset(key.scopes),
            queues=key.queues,
            key_id=name,
            via=request.via,
            session_id=None if key.of is None else key.key_id,
        )

    def _keyless(self, request: Incoming, known: Known) -> Principal:
        if keys.are_needed(known.values()):
            raise problems.unauthenticated()
        if not request.is_local:
            raise Problem(
                403,
                "no-keys",
                "this server has no keys, so that it answers its own machine alone:"
                ' make a key there with "holdfast keys create"',
            )
        origins.check_without_key(request)
        return local(request.via)


def _key_in_header(request: Incoming) -> str | None:
    bearer, own = request.header(b"authorization"), request.header(b"x-api-key")
    scheme, _, text = (bearer or "").partition(" ")
    given = text.strip() if scheme.lower() == "bearer" else None
    if given is not None and own is not None and given != own:
        raise problems.unauthenticated("Authorization and X-API-Key have different keys: send one of them")
    return given if given is not None else own
