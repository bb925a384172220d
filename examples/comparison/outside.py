"""The world outside of the queues, the same for all three: a card service, and a clock on the wall."""

import os
from pathlib import Path

STEP_SECONDS = 0.25  # of work for each number that is counted


def charge(order: int) -> str:
    """Charge a card. Each line is a charge that a customer sees."""
    _note("charges", order)
    return f"receipt {order}"


def strike() -> None:
    """Let the clock strike."""
    _note("strikes", "once")


def noted(name: str) -> list[str]:
    """Return what has happened outside."""
    file = _file(name)
    return file.read_text().split() if file.exists() else []


def _note(name: str, word: object) -> None:
    with _file(name).open("a") as file:
        file.write(f"{word}\n")


def _file(name: str) -> Path:
    return Path(os.environ.get("OUTSIDE", ".")) / name
