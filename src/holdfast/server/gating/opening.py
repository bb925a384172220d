"""Which paths ask for no key, as the table of routes says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Opening = Literal["anyone", "local"]


class Openings:
    """`anyone`: everyone may call it. `local`: this machine may, others need a key."""

    def __init__(self, paths: Sequence[tuple[re.Pattern[str], Opening]]) -> None:
        self._paths = tuple(paths)

    def of(self, path: str) -> Opening | None:
        return next((opening for pattern, opening in self._paths if pattern.match(path)), None)
