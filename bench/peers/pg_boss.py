"""pg-boss: two loops that take 5,000 jobs each and settle them as one, polling as fast as it lets one."""

from __future__ import annotations

from peers.asking_node import NodePeer

MEASURES = NodePeer(
    "pg_boss.mjs", "SELECT count(*) FROM pgboss.job WHERE state < 'completed' AND name = 'noop'"
).measures()
