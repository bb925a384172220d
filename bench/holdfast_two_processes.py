"""The same drain by two worker processes."""

from __future__ import annotations

from holdfast_worker import drain_by_two

MEASURES = {"drain": drain_by_two}
