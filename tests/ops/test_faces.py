"""The faces call the app and the operations: none of them uses the store, or writes an audit entry of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from backstay.app import Backstay

SOURCE = Path(__file__).parents[2] / "src/backstay"
FACES = ("server", "dashboard", "cli", "client")
MODULES = [*(path for face in FACES for path in sorted((SOURCE / face).rglob("*.py"))), SOURCE / "sync.py"]

# Each with its reason.
EXCEPTIONS = {
    # A submit leaves no entry, because the job's created_by says who; from a form it does, since its name there is
    # "dashboard" where there are no keys.
    ("dashboard/submit.py", "audited"),
    # The blocking twin of Backstay.audited, for changes of an application's own.
    ("sync.py", "audited"),
}
PRIVATE = {name for name in vars(Backstay) if name.startswith("_") and not name.startswith("__")} | {"_store", "_files"}


def uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What a face must not use: the store, the store's audit verb, and private members of the app."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_private = node.attr in PRIVATE and _is_app(node.value)
            if is_private or node.attr in ("store", "audit", "audited"):
                yield node.attr, node.lineno


def _is_app(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name in ("app", "_app", "inner")


def found(path: Path) -> list[str]:
    name = str(path.relative_to(SOURCE))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = name == "sync.py"  # whose own `_app` is the blocking one
    return [
        f"{name}:{line} uses {attribute}"
        for attribute, line in uses(tree)
        if (name, attribute) not in EXCEPTIONS and not (ours and attribute.startswith("_"))
    ]


def test_no_face_uses_the_store_or_writes_an_audit_entry() -> None:
    assert len(MODULES) > 50
    assert [line for path in MODULES for line in found(path)] == []


def test_every_exception_is_one() -> None:
    there = {
        (str(path.relative_to(SOURCE)), attribute)
        for path in MODULES
        for attribute, _ in uses(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert there >= EXCEPTIONS


def test_only_one_function_writes_to_the_audit_trail() -> None:
    writers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.parts[-2] not in ("conformance", "history")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "audit"
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and "store" in ast.unparse(node.func.value)
    }
    assert writers == {"ops/audit.py"}


@pytest.mark.parametrize(
    "line",
    ["app.store.get([job_id])", "self._app.store.find(query)", "app._target(name)", "app.audited('x', 'y')"],
)
def test_what_is_forbidden_is_seen(line: str) -> None:
    assert list(uses(ast.parse(line)))
