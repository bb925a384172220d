"""Everything that was asked of the five systems has a test that is there and runs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_reference import generator

COVERAGE = generator("generate_coverage")
ITEMS = COVERAGE.items()
ID = re.compile(r"(tests/[\w/]+/test_\w+\.py)(?:::(Test\w+))?::(test_\w+)")
SUITE = "src/backstay/testing/conformance"  # test_suite.py checks that each engine is given all of its classes
Test = ast.FunctionDef | ast.AsyncFunctionDef


def trouble(test_id: str) -> str | None:
    """Why a test is not one that shows something; None where all is well."""
    parts = ID.fullmatch(test_id)
    if parts is None:
        return "is no path of a test file, two colons and a test"
    file, of_class, name = parts.groups()
    if not (ROOT / file).is_file():
        return "is in a file that is not there"
    module = parsed(ROOT / file)
    places = [module] if of_class is None else classes(file, of_class)
    found = [each for place in places for each in place.body if isinstance(each, Test) and each.name == name]
    if len(found) != 1:
        return f"is there {len(found)} times"  # of two of one name only the last one runs
    [test] = found
    if any(is_skip(each) for each in (*test.decorator_list, *marks(module))):
        return "is always skipped"
    first = next((each for each in test.body if not is_constant(each)), None)
    if isinstance(first, ast.Expr) and is_skip(first.value):
        return "skips itself in its first line"
    return "does nothing" if first is None else None


def classes(file: str, name: str) -> list[ast.ClassDef]:
    """Those of this name in the file itself, and in the suite where the file is an engine that takes it."""
    paths = [ROOT / file]
    if "from backstay.testing.conformance import *" in map(ast.unparse, parsed(paths[0]).body):
        paths += (ROOT / SUITE).glob("*.py")
    nodes = (each for path in paths for each in parsed(path).body)
    return [each for each in nodes if isinstance(each, ast.ClassDef) and each.name == name]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def marks(module: ast.Module) -> list[ast.expr]:
    """Those of the whole file."""
    found: list[ast.expr] = []
    for each in module.body:
        if isinstance(each, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in each.targets):
            found += each.value.elts if isinstance(each.value, ast.List) else [each.value]
        elif isinstance(each, ast.Expr):
            found.append(each.value)  # pytest.skip(…, allow_module_level=True)
    return found


def is_skip(node: ast.expr) -> bool:
    """`skipif` is not one: it says when."""
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called) in ("pytest.mark.skip", "pytest.skip", "pytest.mark.xfail", "pytest.xfail")


def is_constant(node: ast.stmt) -> bool:
    """A docstring, or three dots."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_every_item_has_a_test_that_is_there_and_runs() -> None:
    troubles = {each["test"]: said for each in ITEMS if (said := trouble(each["test"]))}
    assert troubles == {}


def test_pytest_itself_has_collected_them_and_skips_none(request: pytest.FixtureRequest) -> None:
    """Of the files of this run: in the gate, which runs all tests, that means every one of them."""
    config = request.config
    if config.option.keyword or config.option.markexpr or any("::" in each for each in config.args):
        return  # a part of a file was asked for: what is not there was left out on purpose
    skipped = {each.nodeid.partition("[")[0] for each in request.session.items if each.get_closest_marker("skip")}
    collected = {each.nodeid.partition("[")[0] for each in request.session.items} - skipped
    files = {each.partition("::")[0] for each in collected | skipped}
    named = {each["test"] for each in ITEMS}
    assert sorted(each for each in named - collected if each.partition("::")[0] in files) == []


def test_every_item_says_what_of_which_system() -> None:
    extra = {"works": set(), "differs": {"verdict", "why"}, "receiver": {"verdict", "service"}}
    assert [
        each for each in ITEMS if set(each) != {"system", "item", "test"} | extra.get(COVERAGE.verdict(each), set())
    ] == []
    assert {COVERAGE.verdict(each) for each in ITEMS} == set(COVERAGE.VERDICTS)
    assert {each["system"] for each in ITEMS} == set(COVERAGE.SYSTEMS)
    named = [(each["system"], each["item"]) for each in ITEMS]
    assert [each for each in named if named.count(each) > 1] == []


def test_every_service_that_is_played_by_a_receiver_is_described_with_a_test() -> None:
    services = {each["name"]: each for each in COVERAGE.read()["service"]}
    assert {each["service"] for each in ITEMS if "service" in each} <= set(services)
    assert {each["test"]: said for each in services.values() if (said := trouble(each["test"]))} == {}


def test_every_system_is_covered_line_by_line() -> None:
    """A part that is lost when the file is edited is noticed."""
    count = {name: sum(each["system"] == name for each in ITEMS) for name in COVERAGE.SYSTEMS}
    assert {name: number for name, number in count.items() if number < FEWEST[name]} == {}


FEWEST = {
    "the analysis queue": 132,
    "results by job id": 73,
    "the embedding queue": 98,
    "the audio service": 90,
    "the scheduled queue": 107,
}


def test_the_page_is_current() -> None:
    [(path, text)] = COVERAGE.pages()
    assert path.read_text(encoding="utf-8") == text, "run: python scripts/generate/generate_coverage.py"


@pytest.mark.parametrize(
    ("test_id", "said"),
    [
        ("tests/docs/test_coverage.py::test_the_page_is_current", None),
        ("tests/docs/test_coverage.py::test_the_page_is_currant", "0 times"),
        (
            "tests/engines/conformance/test_sqlite.py::TestClaim::test_attempt_and_version_grow_by_one_with_each_claim",
            None,
        ),
        ("tests/engines/conformance/test_sqlite.py::TestClaim::test_attempt_and_version_grow_by_two", "0 times"),
        (
            "tests/engines/conformance/test_sqlite.py::TestClaims::test_attempt_and_version_grow_by_one_with_each_claim",
            "0 times",
        ),
        ("tests/docs/test_coverage.py::TestClaim::test_attempt_and_version_grow_by_one_with_each_claim", "0 times"),
        ("tests/docs/test_coverings.py::test_the_page_is_current", "not there"),
        ("tests/docs/test_coverage.py", "no path"),
        ("tests/docs/test_coverage.py::trouble", "no path"),
        ("tests/docs/pages.py::test_nothing", "no path"),
    ],
)
def test_an_id_that_leads_nowhere_is_found(test_id: str, said: str | None) -> None:
    found = trouble(test_id)
    assert found is None if said is None else said in str(found)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_a():\n    assert True", None),
        ("@pytest.mark.skipif(True, reason='')\ndef test_a():\n    assert True", None),
        ("@pytest.mark.skip\ndef test_a():\n    assert True", "always skipped"),
        ("@pytest.mark.skip(reason='')\nasync def test_a():\n    assert True", "always skipped"),
        ("@pytest.mark.xfail\ndef test_a():\n    assert True", "always skipped"),
        ("pytestmark = pytest.mark.skip\ndef test_a():\n    assert True", "always skipped"),
        ("pytestmark = [pytest.mark.slow, pytest.mark.skip]\ndef test_a():\n    assert True", "always skipped"),
        ("pytest.skip('', allow_module_level=True)\ndef test_a():\n    assert True", "always skipped"),
        ("def test_a():\n    'why'\n    pytest.skip('later')\n    assert True", "skips itself"),
        ("def test_a():\n    'why'\n    ...", "does nothing"),
        ("def test_a():\n    assert True\ndef test_a():\n    assert True", "2 times"),
        ("class TestA:\n    def test_a(self):\n        assert True", "0 times"),
    ],
)
def test_a_test_that_shows_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str | None
) -> None:
    (tmp_path / "tests" / "x").mkdir(parents=True)
    (tmp_path / "tests/x/test_x.py").write_text(source)
    monkeypatch.setattr("tests.docs.test_coverage.ROOT", tmp_path)
    found = trouble("tests/x/test_x.py::test_a")
    assert found is None if said is None else said in str(found)
