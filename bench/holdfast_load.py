"""Holdfast's measurements. They use its public API and its worker command, nothing inside it."""

from __future__ import annotations

from holdfast_history import drain_large
from holdfast_retention import drain_with_retention
from holdfast_submit import submit_concurrent, submit_many, submit_one
from holdfast_worker import drain, idle, pickup_other, pickup_same

MEASURES = {
    "submit-one": submit_one,
    "submit-concurrent": submit_concurrent,
    "submit-many": submit_many,
    "drain": drain,
    "pickup-same": pickup_same,
    "pickup-other": pickup_other,
    "idle": idle,
    "history": drain_large,
    "retention": drain_with_retention,
}
