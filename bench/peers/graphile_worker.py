"""graphile-worker with its batched settings: a local queue of 500, completions gathered. It deletes finished jobs."""

from __future__ import annotations

from peers.asking_node import NodePeer

MEASURES = NodePeer("graphile_worker.mjs", "SELECT count(*) FROM graphile_worker._private_jobs").measures()
