"""The benches measure the package as it is. Most run by hand, so nothing else would tell that a name has moved."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("path", sorted(BENCH.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCH)))
def test_what_a_bench_imports_from_the_package_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "backstay":
            module = import_module(str(node.module))
            missing = [each.name for each in node.names if not hasattr(module, each.name)]
            missing = [name for name in missing if not _is_module(f"{node.module}.{name}")]
            assert not missing, f"{path.name} imports {missing} from {node.module}"


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True
