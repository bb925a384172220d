"""Payloads as they are written on a command line: JSON, @file, or - for stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from holdfast import codec
from holdfast.errors import InvalidPayload
from holdfast.limits import PAYLOAD_BYTES_MAX


def read(given: str) -> Any:
    if given == "-":
        raw = sys.stdin.buffer.read(4 * PAYLOAD_BYTES_MAX)  # far more is no payload, whatever its spacing
    elif given.startswith("@"):
        try:
            raw = Path(given[1:]).read_bytes()
        except OSError as error:
            raise InvalidPayload(f"{given[1:]} cannot be read: {error.strerror}") from None
    else:
        raw = given.encode("utf-8", "surrogateescape")
    try:
        return codec.from_json(raw)
    except InvalidPayload as error:
        raise InvalidPayload(f"{error}{_hint(raw, typed=given != '-' and not given.startswith('@'))}") from None


def _hint(raw: bytes, *, typed: bool) -> str:
    """What to write instead. A shell that ate the quotes is the usual trouble, but not where Python can read it."""
    constants: list[str] = []
    try:
        json.loads(raw, parse_constant=constants.append)
    except (ValueError, RecursionError):
        return "; write it in single quotes, with double ones inside: '{\"n\": 1}'" if typed else ""
    return f'; write null for {constants[0]}, or text: "{constants[0]}"' if constants else ""
