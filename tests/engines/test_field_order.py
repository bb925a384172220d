"""The order of the table of job fields means nothing: engines read and write by name, or by lists made of it."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

from tests.support.servers.postgres import Postgres

ROOT = Path(__file__).parents[2]


def in_reverse(*urls: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engines.field_order", *urls],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_sqlite_works_with_the_fields_in_another_order(tmp_path: Path) -> None:
    in_reverse(f"sqlite:///{tmp_path / 'one.db'}", f"sqlite:///{tmp_path / 'other.db'}")


def test_postgresql_works_with_the_fields_in_another_order(postgres: Postgres) -> None:
    in_reverse(*(postgres.url(schema=f"order_{secrets.token_hex(4)}", clock="caller") for _ in range(2)))
