"""Who is asking, and what they may do: principals, the permissions of a route, keys, rate limits, claim tokens.

`needs(scope)` or `anyone` says who may call a route; every job id in a request goes through `visible`.

The key cache contains what was read from the store at most SECONDS ago, or by a read that began at most READ_SECONDS
ago; together these are the five seconds after which a revoked key is refused everywhere. While the store does not
answer, all requests with keys are refused.

A claim token is `<attempt>.<claim>.<seal>`, good for one attempt of one job. The claim is random, or follows from the
request_id that a worker chose, so that a repeated request finds its leases on any server. The seal binds it to the job
and the attempt; only servers of this queue can make one. The store keeps a third text, which is derived from the claim:
reading a job row does not reveal the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Request

from backstay import ids, limits
from backstay.app import Backstay
from backstay.core import access_keys
from backstay.core.records import ApiKey, Hold
from backstay.errors import BackstayError, ClaimLost, JobNotFound, StoreUnavailable, UnknownJobType
from backstay.job import Job
from backstay.ops.audit import Actor
from backstay.server import problems
from backstay.server.problems import Problem
from backstay.server.request import Incoming, Opening, Via, check_keyless_origin, network

Scope = Literal["read", "submit", "work", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "work", "admin")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. Its rights are those of its key, and nothing else gives any."""

    name: str
    scopes: frozenset[str]
    queues: tuple[str, ...] = ()  # patterns with *; none: all queues
    key_id: str | None = None  # None: this machine, where there are no keys
    via: Via = "http"
    session_id: str | None = field(default=None, repr=False)  # of the dashboard: the id of its short-lived key

    def may(self, *scopes: str) -> bool:
        """Whether it has one of these scopes; admin has all."""
        return "admin" in self.scopes or not self.scopes.isdisjoint(scopes)

    def sees(self, queue: str) -> bool:
        return not self.queues or access_keys.matches(self.queues, queue)

    @property
    def sees_all(self) -> bool:
        return not self.queues or "*" in self.queues


def local(via: Via) -> Principal:
    """The principal of every client on this machine while there are no keys."""
    return _LOCAL[via]


_LOCAL = {via: Principal("local", frozenset(SCOPES), via=via) for via in get_args(Via)}


def is_operator(principal: Principal | None) -> bool:
    """Whether it may change everything, in every queue."""
    return principal is not None and principal.may("admin") and principal.sees_all


# The permissions of a route


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may call a route. A dependency that routing.py recognises, and checks before anything else."""

    scopes: tuple[Scope, ...]  # one of them is enough; none: everyone may
    is_open_here: bool = False  # this machine may without a key

    def check(self, request: Incoming) -> None:
        if not self.scopes or (self.is_open_here and request.is_local):
            return
        principal = request.principal
        if principal is None:
            raise problems.unauthenticated()
        if not principal.may(*self.scopes):
            raise problems.out_of_scope(self.scopes)

    @property
    def opening(self) -> Opening | None:
        """Whether it accepts requests without a key."""
        if not self.scopes:
            return "anyone"
        return "local" if self.is_open_here else None

    def __call__(self) -> None:
        raise NotImplementedError("routing.py checks who may call a route")


def needs(*scopes: Scope) -> Guard:
    """A dependency of a route: `dependencies=[Depends(needs("submit"))]`. One of the scopes is enough."""
    if not scopes:
        raise ValueError("needs() without a scope: use `anyone`")
    return Guard(scopes)


def unless_local(*scopes: Scope) -> Guard:
    """A route that this machine may call without a key; others need a key with the scope."""
    return Guard(scopes, is_open_here=True)


anyone = Guard(())  # a route that everyone may call; the gate gets the list of their paths


def incoming(request: Request) -> Incoming:
    """What the gate knows about a request."""
    found: Incoming = request.scope["state"]["incoming"]
    return found


def is_local(request: Request) -> bool:
    """Whether the request comes from this machine, as determined by the gate."""
    return incoming(request).is_local


def found(request: Request) -> Principal | None:
    """The principal that the gate has found; None if the request has none."""
    principal: Principal | None = incoming(request).principal
    return principal


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from that the client does not send. A dependency that routing.py recognises."""

    read: Callable[[Incoming, Backstay], Any]

    def __call__(self) -> None:
        raise NotImplementedError("routing.py reads what a route is given")


def _who(request: Incoming, _: Backstay | None = None) -> Principal:
    principal: Principal | None = request.principal
    if principal is None:
        raise problems.unauthenticated()
    return principal


def _by(request: Incoming, _: Backstay) -> Actor:
    who = _who(request)
    return Actor(who.name, who.via, request.client, () if who.sees_all else who.queues)


App = Annotated[Backstay, Depends(Source(lambda _, app: app))]  # in a route: `async def show(app: App, who: Who, …)`
Who = Annotated[Principal, Depends(Source(_who))]
By = Annotated[Actor, Depends(Source(_by))]  # of a change, for its `by=`
Root = Annotated[str, Depends(Source(lambda request, _: request.root))]  # what every path of ours begins with


async def visible(app: Backstay, principal: Principal, job_id: str) -> Job:
    """Return the job if the principal may see it. Otherwise the answer is the same as for a job that does not exist."""
    job = await app.get(job_id)
    if not principal.sees(job.queue):
        raise JobNotFound(f"no job {ids.canonical(job_id)}")
    return job


def check_queue(principal: Principal, queue: str) -> str:
    """For submits, claims and changes of a queue: refuse a queue that the key does not see, by name."""
    if not principal.sees(queue):
        raise problems.foreign_queue(queue)
    return queue


def check_all_queues(principal: Principal) -> None:
    """Refuse to change what holds for jobs of every queue to a key that sees some."""
    if not principal.sees_all:
        raise problems.foreign_queue("every queue, and jobs of a key may be in any")


async def check_type(app: Backstay, principal: Principal, job_type: str) -> None:
    """Refuse to change a type that the key does not see."""
    if not any(each.job_type == job_type and principal.sees(each.queue) for each in await app.job_types()):
        raise UnknownJobType(f"no worker has announced the type {job_type!r:.80}")


def link(request: Request, path: str) -> str:
    """Return a path of ours as a client has to write it, with the prefix that we are mounted at."""
    return incoming(request).root + path


# Keys

SECONDS = 3.0
READ_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class KnownKeys:
    by_id: Mapping[str, ApiKey]
    are_needed: bool  # whether every request needs one


class KeyRing:
    """Caches the keys of the store."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._known = KnownKeys({}, are_needed=True)
        self._read_at = float("-inf")
        self._reading: asyncio.Task[KnownKeys] | None = None

    async def known(self) -> KnownKeys:
        found = self.at_hand()
        return await self._read_once() if found is None else found

    def at_hand(self) -> KnownKeys | None:
        """Return the cached keys, or None if they are too old."""
        return self._known if self._app.clock.monotonic() - self._read_at < SECONDS else None

    def stale(self) -> None:
        """Drop the cache, because a key was created or revoked here, or a session was closed."""
        self._read_at = float("-inf")
        self._reading = None

    async def with_one(self, key_id: str) -> Mapping[str, ApiKey]:
        """Return the known keys and one that may have been created a moment ago."""
        found = {key.key_id: key for key in await _limited(self._app.key_records([key_id]))}
        return {**self._known.by_id, **found}

    async def _read_once(self) -> KnownKeys:
        """Read once for all waiting requests. The read continues if one of them is cancelled."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(_heard)
        return await asyncio.shield(self._reading)

    async def _read(self) -> KnownKeys:
        began = self._app.clock.monotonic()
        found = await _limited(self._app.key_records())
        known = KnownKeys({key.key_id: key for key in found}, access_keys.are_needed(found))
        if self._reading is asyncio.current_task():  # otherwise `stale` was called during the read
            self._known, self._read_at = known, began
        return known


async def _limited(read: Awaitable[list[ApiKey]]) -> list[ApiKey]:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await read
    except TimeoutError:
        raise StoreUnavailable(
            f"the store did not return the keys within {READ_SECONDS:g} seconds: try again"
        ) from None


def _heard(task: asyncio.Task[KnownKeys]) -> None:
    """Retrieve the error of a read whose callers have all left; otherwise asyncio would log it."""
    if not task.cancelled():
        task.exception()


class Buckets:
    """Token buckets by name. Each starts full, with `burst` tokens, and gets `per_second` back."""

    def __init__(self, per_second: float, burst: float, names_max: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._names_max = names_max  # the longest unused are forgotten, which fills them
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has_one(self, name: str, now: float) -> bool:
        return self._at(name, now) >= 1

    def take(self, name: str, now: float) -> bool:
        """Take a token, if there is one."""
        left = self._at(name, now)
        took = left >= 1
        self._left[name] = (left - took, now)
        self._left.move_to_end(name)
        if len(self._left) > self._names_max:
            self._left.popitem(last=False)
        return took

    def wait_seconds(self, name: str, now: float) -> int:
        """Return after how many whole seconds there will be a token again."""
        missing = 1 - self._at(name, now)
        return max(1, math.ceil(missing / self._per_second))

    def _at(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + max(0.0, now - at) * self._per_second)


_RATE_MAX = 1e9  # means no limit: a bucket cannot count to infinity
SESSION_COOKIE = "backstay_session"


class Authenticator:
    def __init__(self, app: Backstay, ring: KeyRing, *, rate: float, failures_burst: int) -> None:
        self._app = app
        self._ring = ring
        rate = min(rate, _RATE_MAX)
        self._rates = Buckets(rate, max(1.0, 2 * rate), limits.KEYS_MAX)
        self._failures = Buckets(limits.HTTP_FAILURES_PER_SECOND, failures_burst, limits.HTTP_CLIENTS_MAX)
        self._looks = Buckets(limits.HTTP_FAILURES_PER_SECOND, failures_burst, limits.HTTP_CLIENTS_MAX)

    async def principal(self, request: Incoming) -> Principal:
        """Return who is asking; raise a Problem if that cannot be told, or is refused."""
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
        """Return who is asking, for paths that need no key. An unavailable store must not take down what works without
        it."""
        known = self._ring.at_hand()
        carries = _key_in_header(request) is not None or (request.is_dashboard and request.cookie(SESSION_COOKIE))
        if known is None and not carries:
            return None
        try:
            return await self.principal(request)
        except (Problem, BackstayError):
            return None

    def count_failure(self, request: Incoming) -> None:
        self._failures.take(network(request.client), self._app.clock.monotonic())

    def check_failures(self, request: Incoming) -> None:
        client, now = network(request.client), self._app.clock.monotonic()
        if not self._failures.has_one(client, now):
            wait = self._failures.wait_seconds(client, now)
            raise Problem(
                429,
                "too-many-failures",
                "too many wrong keys from this address: wait, then try again",
                retry_after=wait,
            )

    async def _holder(self, request: Incoming, text: str, known: KnownKeys) -> Principal:
        key = await self._checked(request, text, known, is_session=False)
        if key is None:
            self.check_failures(request)
            self.count_failure(request)
            raise problems.unauthenticated("this key is unknown to this server, or it was revoked or has expired")
        return self._admitted(request, key)

    async def _checked(self, request: Incoming, text: str, known: KnownKeys, *, is_session: bool) -> ApiKey | None:
        """Return the key with this text. One that is not in the cache is looked up in the store, whatever is wrong with
        it: it may be new, and the time of a refusal must not reveal which ids exist."""
        parsed = access_keys.parse(text)
        if parsed is None:
            return None
        now = self._app.clock.now()
        key = access_keys.check(parsed, known.by_id, now)
        if key is None and self._looks.take(network(request.client), self._app.clock.monotonic()):
            key = access_keys.check(parsed, await self._ring.with_one(parsed.key_id), now)
        return key if key is not None and (key.of is not None) == is_session else None

    def _admitted(self, request: Incoming, key: ApiKey) -> Principal:
        name, now = key.of or key.key_id, self._app.clock.monotonic()
        if not self._rates.take(name, now):
            wait = self._rates.wait_seconds(name, now)
            raise Problem(
                429, "too-many-requests", "this key sends too many requests: wait, then try again", retry_after=wait
            )
        return Principal(
            name=key.name,
            scopes=frozenset(key.scopes),
            queues=key.queues,
            key_id=name,
            via=request.via,
            session_id=None if key.of is None else key.key_id,
        )

    def _keyless(self, request: Incoming, known: KnownKeys) -> Principal:
        if known.are_needed:
            raise problems.unauthenticated()
        if not request.is_local:
            raise Problem(
                403,
                "no-keys",
                "this server has no keys, so it only answers its own machine:"
                ' create a key there with "backstay keys create"',
            )
        check_keyless_origin(request)
        return local(request.via)


def _key_in_header(request: Incoming) -> str | None:
    bearer, own = request.header(b"authorization"), request.header(b"x-api-key")
    scheme, _, text = (bearer or "").partition(" ")
    given = text.strip() if scheme.lower() == "bearer" else None
    if given is not None and own is not None and given != own:
        raise problems.unauthenticated("Authorization and X-API-Key carry different keys: send only one")
    return given if given is not None else own


CHECK_SECONDS = 2.0  # between checks of an open stream; with the age of the cache within five seconds


async def may_stay(request: Request, who: Principal) -> bool:
    """Return whether an open stream may continue. A revoked key ends its streams, a logout those of its session, and
    the creation of the first key those that were opened without one."""
    ring: KeyRing = request.app.state.keyring
    try:
        known = await ring.known()
        if who.key_id is None:
            return not known.are_needed
        now = request.app.state.backstay.clock.now()
        for key_id in (who.key_id, who.session_id):
            if key_id is None:
                continue
            key = known.by_id.get(key_id) or (await ring.with_one(key_id)).get(key_id)  # it may be new
            if key is None or not access_keys.is_live(key, now):
                return False
    except BackstayError:
        return False  # unknown: a client that connects again is checked again
    return True


# Claim tokens

_TEXT = re.compile(r"(\d{1,18})\.([0-9a-f]{32})\.([0-9a-f]{32})", re.ASCII)
TOKEN_LENGTH_MAX = 18 + 1 + 32 + 1 + 32


class ClaimTokens:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def claim(self, key_id: str | None, worker_id: str, request_id: str | None) -> str:
        """Return the claim of a request. The same request_id from another key or worker is another claim."""
        if request_id is None:
            return secrets.token_hex(16)
        return self._mac("claim", key_id or "", worker_id, request_id)

    def stored(self, claim: str) -> str:
        return self._mac("stored", claim)

    def text(self, job_id: str, attempt: int, claim: str) -> str:
        return f"{attempt}.{claim}.{self._seal(job_id, attempt, claim)}"

    def hold(self, job_id: str, text: str) -> Hold:
        """Return the claim of a token. One of another job or attempt, or a forged one, is treated as a lost claim."""
        found = _TEXT.fullmatch(text)
        attempt, claim, seal = found.groups() if found else ("0", "", "")
        if not hmac.compare_digest(seal, self._seal(job_id, int(attempt), claim)):
            raise ClaimLost(f"the token does not belong to a claim of job {job_id}: stop working on it")
        return Hold(job_id, int(attempt), self.stored(claim))

    def _seal(self, job_id: str, attempt: int, claim: str) -> str:
        return self._mac("seal", job_id, str(attempt), claim)

    def _mac(self, *parts: str) -> str:
        return hmac.new(self._secret, "\0".join(parts).encode(), hashlib.sha256).hexdigest()[:32]
