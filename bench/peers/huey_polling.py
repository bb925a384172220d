"""huey tuned for latency: it polls every millisecond, at the price of CPU time when idle."""

from __future__ import annotations

from peers.huey_consumer import measures

MEASURES = measures("--delay=0.001", "--max-delay=0.001", "--backoff=1.0")
