"""The reference says everything that the code has, and nothing that it has not."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from holdfast import context, errors, job, lifecycle, limits, outcomes, settings
from holdfast.cli import exits
from holdfast.cli.main import cli
from holdfast.submission import SubmitOptions
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs/reference"
COMMANDS = typer.main.get_group(cli).commands
NOT_FOR_USERS = {"HOLDFAST_FAILPOINTS", "HOLDFAST_SUPERVISOR_PIPE"}


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def rows(name: str) -> list[str]:
    """The first cell of every row of the page's tables, without its backticks."""
    cells = re.findall(r"^\| `([^`]+)`", page(name), flags=re.MULTILINE)
    assert len(cells) == len(set(cells)), "a name is listed twice"
    return cells


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", ["generate_diagram", "generate_reference"])
def test_generated_parts_are_current(script: str) -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in generator(script).pages() if path.read_text("utf-8") != text]
    assert stale == [], f"run: python docs/{script}.py"


def test_the_diagram_has_every_edge() -> None:
    text = (ROOT / "docs/explanation/lifecycle.md").read_text(encoding="utf-8")
    for event, (sources, targets) in lifecycle.EDGES.items():
        for source in sources:
            for target in targets:
                edge = f"    {source.value if source else '[*]'} --> {target.value}: "
                assert any(line.startswith(edge) and event.value in line for line in text.splitlines()), edge + event


def test_every_error_is_listed() -> None:
    public = {
        name
        for module in (errors, outcomes)
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, errors.HoldfastError)
    }
    assert set(rows("errors")) == public


def test_every_limit_is_listed() -> None:
    units = {"KIB", "MIB"}
    assert set(rows("limits")) == {name for name in vars(limits) if name.isupper()} - units


def test_every_submit_option_is_listed() -> None:
    assert rows("submit-options") == list(SubmitOptions.__annotations__)


def test_every_field_of_the_record_is_listed() -> None:
    assert [name for name in rows("job-record") if name in job.FIELDS] == job.FIELDS
    extra = set(rows("job-record")) - set(job.FIELDS)
    assert all(hasattr(job.Job, name) for name in extra)


def test_everything_of_the_context_is_listed() -> None:
    public = {name for name in dir(context.Context) if not name.startswith("_")}
    assert {name.partition("(")[0].removeprefix("ctx.") for name in rows("context")} == public


def test_every_setting_is_listed() -> None:
    sources = [Path(settings.__file__), *Path(settings.__file__).parent.rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    read = {f"HOLDFAST_{name.upper()}" for name in re.findall(r'\bsetting\("(\w+)"', code)}
    read |= {f"HOLDFAST_{name.upper()}" for name in re.findall(r'\b_one_of\("(\w+)"', code)}
    read |= set(re.findall(r'"(HOLDFAST_[A-Z_]+)"', code)) - NOT_FOR_USERS
    assert set(rows("settings")) == read


def test_every_command_is_listed() -> None:
    assert {name.split()[0] for name in rows("command-line") if not name.startswith("-")} == set(COMMANDS)


def test_every_option_of_a_command_is_listed() -> None:
    """Each command has a heading; under it stand its options, all of them and no others."""
    text = page("command-line")
    everywhere = {"--url", "--app", "--json", "--help"}
    for name, command in COMMANDS.items():
        options = {option for each in command.params for option in each.opts if option.startswith("--")}
        section = text.partition(f"\n## `{name}")[2].partition("\n## ")[0]
        assert section, f"{name} has no heading"
        assert set(re.findall(r"`(--[a-z-]+)", section)) - everywhere == options - everywhere, name


def test_every_exit_code_is_listed() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page("command-line"), flags=re.MULTILINE))
    assert listed == {str(code.value): meaning for code, meaning in exits.MEANINGS.items()}
