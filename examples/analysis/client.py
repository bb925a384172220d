"""A client of the service, with nothing but the standard library and a key."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any


class Client:
    def __init__(self, address: str, key: str) -> None:
        self.address = address
        self._key = key

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return json.loads(self.read(path, json.dumps(body).encode(), "application/json"))

    def send_audio(self, path: Path) -> str:
        """Upload a file; return its content hash."""
        answer = json.loads(self.read("/audio", path.read_bytes(), "audio/wav"))
        return str(answer["content_hash"])

    def read(self, path: str, body: bytes | None = None, content_type: str = "") -> bytes:
        headers = {"X-API-Key": self._key, **({"Content-Type": content_type} if body is not None else {})}
        request = urllib.request.Request(self.address + path, body, headers)  # noqa: S310 - our own address
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return bytes(answer.read())
