"""Statements from sql/<verb>.sql, read once at import."""

from __future__ import annotations

from importlib import resources
from typing import Any

import apsw

_FOLDER = resources.files("holdfast.stores.sqlite")


def load(name: str) -> str:
    return _FOLDER.joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, statements), in order."""
    found = []
    for entry in _FOLDER.joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            found.append((int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")))
    return sorted(found)


# apsw types a row as whatever SQLite can hold; our statements know what theirs hold.


def rows(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> list[tuple[Any, ...]]:
    return connection.execute(statement, bindings).fetchall()


def row(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> tuple[Any, ...] | None:
    return connection.execute(statement, bindings).fetchone()


def value(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> Any:
    """The first column of the first row; None when there is none."""
    return connection.execute(statement, bindings).get
