"""huey as its documentation starts it: one worker thread, polling from 0.1 s with back-off."""

from __future__ import annotations

from peers.huey_consumer import measures

MEASURES = measures()
