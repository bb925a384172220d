"""Statements from sql/<verb>.sql, read once; `holdfast.` in them becomes the schema's own name."""

from __future__ import annotations

import re
from importlib import resources

_FOLDER = resources.files("holdfast.stores.postgres")

# Of claim_plain, what puts the heads of several lanes in one order: a single lane's are in it.
_RANKED = re.compile(r"(?<=chosen AS MATERIALIZED \(\n).*?(?=\n\), )", re.DOTALL)


class Statements:
    """Every statement, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._texts = {
            entry.name.removesuffix(".sql"): self.named(entry.read_text(encoding="utf-8"))
            for entry in _FOLDER.joinpath("sql").iterdir()
            if entry.name.endswith(".sql")
        }
        self._texts["claim_lane"] = _RANKED.sub(
            "    SELECT place_of FROM head LIMIT $5::integer", self._texts["claim_plain"]
        )

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def named(self, text: str) -> str:
        return text.replace("holdfast.", f'"{self.schema}".')

    def names(self) -> list[str]:
        return sorted(self._texts)


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, statements), in order."""
    found = []
    for entry in _FOLDER.joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            found.append((int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")))
    return sorted(found)
