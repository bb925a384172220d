"""Conformance: API keys and the audit trail."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from backstay.clock import Instant
from backstay.core import dumps
from backstay.core.dumps import FROM, SEALED, MoveState
from backstay.core.port import Store
from backstay.core.records import ApiKey, AuditEntry, Verdict
from backstay.errors import StoreMoved
from backstay.ids import floor
from backstay.limits import AUDIT_DAYS
from backstay.testing.conformance.factories import DAY, NOW, SECOND, a_policy, retire
from backstay.testing.conformance.test_transfer import COMING, carry, everything

AT_ONCE = a_policy(0, 0, 0)


def a_key(key_id: str = "k1", **changes: Any) -> ApiKey:
    fields: dict[str, Any] = {
        "key_id": key_id,
        "name": "deploys",
        "secret_hash": "ab" * 32,
        "scopes": ("read", "submit"),
        "created_at": NOW,
    }
    return ApiKey(**(fields | changes))


_numbers = itertools.count(1)


def an_id(at: Instant) -> str:
    """Return an id for any time: ids that a process generates never decrease."""
    return f"{floor(at)[:24]}{next(_numbers):012x}"


def an_entry(*, at: Instant = NOW, **changes: Any) -> AuditEntry:
    fields: dict[str, Any] = {
        "entry_id": an_id(at),
        "at": at,
        "by": "deploys",
        "via": "http",
        "action": "queue.pause",
        "target": "mail",
    }
    return AuditEntry(**(fields | changes))


async def some_entries(store: Store, count: int, at: Instant = NOW) -> list[AuditEntry]:
    made = [an_entry(at=at) for _ in range(count)]
    await store.audit(made)
    return made


async def trail(store: Store, limit: int = 10) -> list[AuditEntry]:
    """Return the whole trail, read page by page."""
    found: list[AuditEntry] = []
    after: str | None = None
    for _ in range(1_000):
        page = await store.audited(after, limit)
        assert len(page.items) <= limit
        found += page.items
        if page.next is None:
            return found
        after = page.next
    raise AssertionError("the trail does not come to an end")


class TestKeys:
    async def test_a_new_store_has_none(self, store: Store) -> None:
        assert await store.keys() == []

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"queues": ("mail*", "ü")},
            {"created_by": "me", "expires_at": NOW + DAY, "revoked_at": NOW + 1, "revoked_by": "you", "of": "k0"},
            {"scopes": (), "name": 'it\'s "quoted" – and long ' * 4},
        ],
        ids=["plain", "queues", "everything", "odd"],
    )
    async def test_a_key_comes_back_as_it_was(self, store: Store, changes: dict[str, Any]) -> None:
        key = a_key(**changes)

        assert await store.save_key(key, new=True) is Verdict.APPLIED

        assert await store.keys() == [key]
        assert await store.keys(["k1", "no such key", "k1"]) == [key]

    async def test_they_are_listed_by_id(self, store: Store) -> None:
        for key_id in ("b", "C", "a", "B"):
            await store.save_key(a_key(key_id), new=True)

        assert [key.key_id for key in await store.keys()] == ["B", "C", "a", "b"]
        assert [key.key_id for key in await store.keys(["b", "B"])] == ["B", "b"]

    async def test_a_new_one_does_not_take_the_place_of_another(self, store: Store) -> None:
        await store.save_key(a_key(), new=True)

        assert await store.save_key(a_key(secret_hash="cd" * 32), new=True) is Verdict.STALE

        assert await store.keys() == [a_key()]

    async def test_a_repeat_of_a_new_one_is_the_same_key(self, store: Store) -> None:
        for _ in range(2):
            assert await store.save_key(a_key(), new=True) is Verdict.APPLIED

        assert await store.keys() == [a_key()]

    async def test_of_two_who_make_the_same_at_once_one_does(self, store: Store, second_store: Store) -> None:
        made = [a_key(secret_hash=f"{number:064d}") for number in range(6)]

        verdicts = await asyncio.gather(
            *((store, second_store)[n % 2].save_key(key, new=True) for n, key in enumerate(made))
        )

        [stored] = await store.keys()
        assert [verdict for verdict in verdicts if verdict is Verdict.APPLIED] == [Verdict.APPLIED]
        assert made[verdicts.index(Verdict.APPLIED)] == stored

    async def test_a_revoked_key_shows_as_one_to_everybody_at_once(self, store: Store, second_store: Store) -> None:
        await store.save_key(a_key(expires_at=NOW + DAY), new=True)
        revoked = a_key(revoked_at=NOW + SECOND, revoked_by="me")

        assert await store.save_key(revoked) is Verdict.APPLIED

        assert await second_store.keys() == await second_store.keys(["k1"]) == [revoked]

    async def test_dropped_keys_are_gone(self, store: Store) -> None:
        for key_id in ("a", "b", "c"):
            await store.save_key(a_key(key_id), new=True)

        for _ in range(2):
            await store.drop_keys(["a", "c", "no such key"])
            await store.drop_keys([])

        assert [key.key_id for key in await store.keys()] == ["b"]

    async def test_many_are_all_listed(self, store: Store) -> None:
        made = [a_key(f"k{number:03d}", name="x" * 100, queues=("q" * 100,) * 5) for number in range(150)]
        for start in range(0, len(made), 25):
            await asyncio.gather(*(store.save_key(key, new=True) for key in made[start : start + 25]))

        assert await store.keys() == made
        assert await store.keys([key.key_id for key in made]) == made


class TestAuditTrail:
    async def test_a_new_store_has_none(self, store: Store) -> None:
        page = await store.audited(None, 10)

        assert (page.items, page.next) == ((), None)

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"before": '{"paused":false}', "after": '{"paused":true}', "outcome": "ok", "remote": "192.0.2.7"},
            {"target": "", "by": "ü", "outcome": "", "before": "null"},
            {"before": '"' + "x" * 8_000 + '"', "after": '"' + "ü" * 4_000 + '"'},
        ],
        ids=["plain", "everything", "odd", "large"],
    )
    async def test_an_entry_comes_back_as_it_was(self, store: Store, changes: dict[str, Any]) -> None:
        entry = an_entry(**changes)

        await store.audit([entry])

        assert (await store.audited(None, 10)).items == (entry,)

    async def test_its_outcome_is_told_later_in_its_place(self, store: Store, second_store: Store) -> None:
        entry, other = an_entry(), an_entry()
        await store.audit([entry, other])
        ended = msgspec.structs.replace(entry, outcome="ok", after="{}", target="news")

        for _ in range(2):
            await second_store.audit([ended])

        assert await trail(store) == [other, ended]

    @pytest.mark.parametrize("limit", [1, 3, 7, 8, 50])
    async def test_pages_go_from_the_newest_to_the_oldest_and_meet_none_twice(self, store: Store, limit: int) -> None:
        made: list[AuditEntry] = []
        for days in (200, 40, 3, 0):
            made += await some_entries(store, 2, NOW - days * DAY)

        assert await trail(store, limit) == made[::-1]

    async def test_what_is_added_meanwhile_does_not_shift_the_next_page(self, store: Store) -> None:
        made = await some_entries(store, 4)
        page = await store.audited(None, 2)
        await some_entries(store, 3, NOW + SECOND)

        rest = await store.audited(page.next, 10)

        assert [*page.items, *rest.items] == made[::-1]
        assert rest.next is None

    async def test_the_place_where_a_page_ended_holds_though_its_entry_is_gone(self, store: Store) -> None:
        old = await some_entries(store, 2, NOW - 5 * DAY)

        assert (await store.audited(an_id(NOW - 4 * DAY), 10)).items == tuple(old[::-1])
        assert (await store.audited(old[0].entry_id, 10)).items == ()

    async def test_many_at_once_from_two_stores_are_all_there(self, store: Store, second_store: Store) -> None:
        made = [an_entry() for _ in range(60)]

        await asyncio.gather(*((store, second_store)[n % 2].audit([entry]) for n, entry in enumerate(made)))
        await store.audit([])

        assert await trail(store, 25) == made[::-1]

    async def test_entries_over_their_time_go_with_retention_and_no_others(self, store: Store) -> None:
        for days in (500, AUDIT_DAYS + 1):
            await some_entries(store, 3, NOW - days * DAY)
        kept = await some_entries(store, 2, NOW - (AUDIT_DAYS - 1) * DAY)
        kept += await some_entries(store, 1)

        for _ in range(2):
            await retire(store, AT_ONCE, now=NOW)
            assert await trail(store) == kept[::-1]

    async def test_of_many_old_ones_each_step_takes_some(self, store: Store) -> None:
        await some_entries(store, 12, NOW - 400 * DAY)

        left = [12]
        for _ in range(4):
            await store.retire(AT_ONCE, NOW, 5, None)
            left.append(len(await trail(store)))

        assert left == [12, 7, 2, 0, 0]


class TestExportOfAccess:
    async def test_keys_and_the_trail_come_along(self, store: Store, elsewhere: Store) -> None:
        for key in (
            a_key("a", queues=("mail",)),
            a_key("b", of="a", expires_at=NOW),
            a_key("server-secret", scopes=()),
        ):
            await store.save_key(key, new=True)
        for days in (100, 50, 0):
            await some_entries(store, 3, NOW - days * DAY)
        await store.audit([an_entry(before="{}", after='{"x":1}', outcome="ok", remote="192.0.2.7")])

        await carry(store, elsewhere)

        assert await elsewhere.keys() == await store.keys() != []
        assert await trail(elsewhere) == await trail(store) != []

    @pytest.mark.parametrize("kind", [dumps.KEYS, dumps.AUDIT])
    async def test_pages_of_any_size_are_the_same_items(self, store: Store, kind: str) -> None:
        for number in range(5):
            await store.save_key(a_key(f"k{number}"), new=True)
            await some_entries(store, 1, NOW - number * 20 * DAY)

        whole = await everything(store, kind)

        assert len(whole) == 5
        assert await everything(store, kind, limit=2) == whole

    async def test_a_second_try_of_a_restore_changes_nothing(self, store: Store, elsewhere: Store) -> None:
        await store.save_key(a_key(), new=True)
        await some_entries(store, 2)

        for kind in (dumps.KEYS, dumps.AUDIT) * 2:
            await elsewhere.restore(kind, await everything(store, kind), COMING)

        assert await elsewhere.keys() == [a_key()]
        assert await trail(elsewhere) == await trail(store)

    async def test_a_sealed_queue_takes_neither_keys_nor_entries(self, elsewhere: Store) -> None:
        await elsewhere.save_key(a_key(), new=True)
        left = MoveState(role=FROM, move_id="m", other="sqlite:///there.db")
        await elsewhere.freeze(left)
        assert await elsewhere.freeze(msgspec.structs.replace(left, kind=SEALED)) == 0

        for refused in (
            lambda: elsewhere.save_key(a_key("k2"), new=True),
            lambda: elsewhere.drop_keys(["k1"]),
            lambda: elsewhere.audit([an_entry()]),
        ):
            with pytest.raises(StoreMoved):
                await refused()

        assert await elsewhere.keys() == [a_key()]
        assert await trail(elsewhere) == []
