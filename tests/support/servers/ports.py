"""Ports for servers that are restarted: from a range that the kernel does not hand out to others in the meantime."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000
_draw = random.SystemRandom()


def free_port() -> int:
    """Return a port below the range of outgoing connections, which would take the port of a server that is down."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    if end <= _LOWEST:
        return _bound(0)
    while True:
        try:
            return _bound(_draw.randrange(_LOWEST, end))
        except OSError:
            continue


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])
