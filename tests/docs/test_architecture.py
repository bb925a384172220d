"""The map of modules is what the modules say, and every path that the pages name exists."""

import importlib.util
import re
from types import ModuleType

import pytest

from tests.docs.pages import ROOT

SOURCE = ROOT / "src/backstay"
MODULES = sorted(SOURCE.rglob("*.py"))
LINE_MAX = 110
NAMED = re.compile(r"`([\w./-]+(?:\.py|\.md|\.toml|\.sql|\.html|/))`")


def _generator() -> ModuleType:
    path = ROOT / "scripts/generate/generate_architecture.py"
    spec = importlib.util.spec_from_file_location("generate_architecture", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


def _complaint(line: str) -> str | None:
    if not line:
        return "has no docstring"
    if len(line) >= LINE_MAX:
        return f"the first line has {len(line)} characters"
    return None if line.endswith((".", "?")) else "the first line is not a sentence: is it cut by a line break?"


def test_every_module_says_in_its_first_line_what_it_is() -> None:
    lines = {each.relative_to(SOURCE).as_posix(): GENERATOR.first_line(each) for each in MODULES}
    assert {name: found for name, line in lines.items() if (found := _complaint(line))} == {}


def test_no_two_modules_say_the_same() -> None:
    lines = [GENERATOR.first_line(each) for each in MODULES]
    assert sorted({each for each in lines if lines.count(each) > 1}) == []


def test_the_map_and_the_layers_are_current() -> None:
    [(path, text)] = GENERATOR.pages()
    assert path.read_text(encoding="utf-8") == text, "run: python scripts/generate/generate_architecture.py"


def test_every_layer_of_the_contract_is_described() -> None:
    assert [each[0] for each in GENERATOR.layers()] == list(GENERATOR.LAYERS)


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").partition("## Map of modules")[0]
    named = {each for each in NAMED.findall(text) if "/" in each}
    assert named
    missing = [each for each in sorted(named) if not any((base / each).exists() for base in (ROOT, SOURCE))]
    assert missing == []
