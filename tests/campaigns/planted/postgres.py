"""Bugs, planted into PostgreSQL's statements one at a time: the judge must detect them there as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from backstay.clock import Instant
from backstay.core.records import Transition, Verdict
from backstay.engines.postgres.store import PostgresStore

_CLAIM_OF_A_SET = "r.attempt = {0}.attempt AND r.token = {0}.token"
_FENCE_OF_COMPLETIONS = """r.attempt = ($10::integer[])[s.claim] AND r.token = ($11::bigint[])[s.claim]
      AND r.worker_id = ($12::text[])[s.claim]
      AND"""
_NO_FENCE = "$10::integer[] IS NOT NULL AND $11::bigint[] IS NOT NULL AND $12::text[] IS NOT NULL AND"


class Forgetful(PostgresStore):
    """A rescue does not say which lease it saw."""

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await super().apply([msgspec.structs.replace(each, lease=None) for each in transitions], now)


@dataclass(frozen=True)
class Misspelt:
    name: str
    changes: tuple[tuple[str, str, str], ...]  # statement, original text, text with the bug
    caught_by: str
    kind: type[PostgresStore] = PostgresStore

    def plant(self) -> Callable[[str], PostgresStore]:
        """Plant a bug; fail if the text to replace is not found."""

        def make(url: str) -> PostgresStore:
            store = self.kind(url)
            texts = store._session.sql._texts
            for statement, right, wrong in self.changes:
                assert right in texts[statement], f"{statement} no longer has {right!r}: plant this bug anew"
                texts[statement] = texts[statement].replace(right, wrong)
            return store

        return make


MISSPELT = (
    Misspelt(
        "settlements_are_fenced_by_id_only",
        (("complete", _FENCE_OF_COMPLETIONS, _NO_FENCE),),
        "S5",
    ),
    Misspelt("a_rescue_does_not_see_an_extension", (), "S7", Forgetful),
    Misspelt("a_lease_is_extended_by_id", (("extend", _CLAIM_OF_A_SET.format("h"), "true"),), "S5"),
    Misspelt("jobs_are_promoted_early", (("promote", "scheduled_for <= $1", "$1::bigint > 0"),), "S13"),
    Misspelt("a_result_is_not_kept", (("complete", "g.result, g.result_artifact", "NULL, g.result_artifact"),), "S8"),
)
