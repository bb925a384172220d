"""Bugs, planted into PostgreSQL's statements one at a time: the judge must detect them there as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backstay.engines.postgres.store import PostgresStore

_CLAIM_OF_A_SET = " AND j.attempt = {0}.attempt AND j.claim_token = {0}.token"


@dataclass(frozen=True)
class Misspelt:
    name: str
    changes: tuple[tuple[str, str, str], ...]  # statement, original text, text with the bug
    caught_by: str

    def plant(self) -> Callable[[str], PostgresStore]:
        """Plant a bug; fail if the text to replace is not found."""

        def make(url: str) -> PostgresStore:
            store = PostgresStore(url)
            texts = store._session.sql._texts
            for statement, right, wrong in self.changes:
                assert right in texts[statement], f"{statement} no longer has {right!r}: plant this bug anew"
                texts[statement] = texts[statement].replace(right, wrong)
            return store

        return make


MISSPELT = (
    Misspelt(
        "settlements_are_fenced_by_status_only",
        (
            ("complete", _CLAIM_OF_A_SET.format("s"), ""),
            ("apply", "AND attempt = $4", ""),
            ("apply", "AND ($6::text IS NULL OR claim_token = $6)", ""),
        ),
        "S5",
    ),
    Misspelt(
        "a_rescue_does_not_see_an_extension",
        (("apply", "$7::bigint IS NULL OR lease_expires_at = $7", "$7::bigint IS NULL OR true"),),
        "S7",
    ),
    Misspelt("a_lease_is_extended_by_id", (("extend", _CLAIM_OF_A_SET.format("h"), ""),), "S5"),
    Misspelt("jobs_are_promoted_early", (("promote", "AND scheduled_for <= $1", "AND $1::bigint > 0"),), "S13"),
    Misspelt("a_result_is_not_kept", (("complete", "result = locked.result", "result = NULL"),), "S8"),
)
