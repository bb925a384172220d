"""The other half of the pair with retention: the same drain in the same file, and nobody tidies up."""

from __future__ import annotations

from holdfast_retention import drain_without_retention

MEASURES = {"retention": drain_without_retention}
