"""The other half of the pair with the large file: the same drain without a history."""

from __future__ import annotations

from holdfast_history import drain_bare

MEASURES = {"history": drain_bare}
