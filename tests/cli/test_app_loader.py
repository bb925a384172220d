"""--app, --url, help and exit codes"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from backstay.cli import app_loader
from backstay.cli.main import _COMMANDS
from backstay.cli.output import MEANINGS
from tests.cli.conftest import Cli, Queue

APP = "from backstay import Backstay\napp = Backstay()\n\n@app.job('{name}')\nasync def f(payload): ...\n"


@pytest.fixture(autouse=True)
def forget_modules(folder: Path) -> object:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("mine:nothing", "has no 'nothing'; it has app"),
        ("mine:number", "this is a int, not a Backstay"),
        ("broken:app", "ZeroDivisionError: division by zero"),
        ("needy:app", "No module named 'missing_dependency'"),
        ("missing.py:app", "there is no file"),
        (":app", "write module:app"),
        ("mine:", "write module:app"),
    ],
)
def test_a_bad_app_path_says_what_is_wrong_with_it(cli: Cli, queue: Queue, folder: Path, app: str, says: str) -> None:
    (folder / "mine.py").write_text(APP.format(name="mine") + "number = 7\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "needy.py").write_text("import missing_dependency\n")
    ran = cli("list", "--app", app)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"backstay: --app {app}")
    assert ran.err.count("\n") == 1
    assert says in ran.err


def test_an_app_is_found_by_module_by_file_and_by_a_file_inside_a_package(cli: Cli, folder: Path) -> None:
    (folder / "byname.py").write_text(APP.format(name="byname"))
    (folder / "pack" / "inner").mkdir(parents=True)
    for each in ("pack/__init__.py", "pack/inner/__init__.py"):
        (folder / each).touch()
    (folder / "pack/inner/tasks.py").write_text(APP.format(name="infile"))
    assert cli("submit", "byname", "--app", "byname:app").code == 0
    assert cli("submit", "byname", "--app", "byname").code == 0
    assert cli("submit", "infile", "--app", "pack/inner/tasks.py:app").code == 0
    assert "pack.inner.tasks" in sys.modules


def test_the_blocking_face_is_an_app_too(cli: Cli, folder: Path) -> None:
    (folder / "blocking.py").write_text(APP.format(name="blocking").replace("from backstay ", "from backstay.sync "))
    assert cli("submit", "blocking", "--app", "blocking:app").code == 0


def test_the_app_may_stand_in_pyproject(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKSTAY_APP")
    (folder / "pyproject.toml").write_text('[tool.backstay]\napp = "configured:app"\n')
    (folder / "configured.py").write_text(APP.format(name="configured"))
    assert list(app_loader.load(None, None).handlers) == ["configured"]


def test_global_options_stand_before_or_after_the_command(cli: Cli, queue: Queue, folder: Path) -> None:
    (folder / "here.py").write_text(APP.format(name="here"))
    assert cli("--url", "sqlite:///a.db", "--app", "here:app", "submit", "here").code == 0
    assert cli("submit", "here", "--url", "sqlite:///b.db", "--app", "here:app").code == 0
    assert (folder / "a.db").exists()
    assert (folder / "b.db").exists()


def test_a_url_that_is_given_wins_over_the_one_in_the_code(cli: Cli, folder: Path) -> None:
    (folder / "fixed.py").write_text(APP.format(name="fixed").replace("Backstay()", "Backstay('sqlite:///code.db')"))
    assert cli("submit", "fixed", "--app", "fixed:app", "--url", "sqlite:///given.db").code == 0
    assert (folder / "given.db").exists()
    assert not (folder / "code.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "sqlite:///given.db", "submit", "fixed"],
        ["--url", "sqlite:///given.db", "schedules", "add", "nightly", "@daily", "fixed"],
        ["schedules", "--url", "sqlite:///given.db", "add", "nightly", "@daily", "fixed"],
        [
            "--url",
            "sqlite:///wrong.db",
            "schedules",
            "--url",
            "sqlite:///given.db",
            "add",
            "nightly",
            "@daily",
            "fixed",
        ],
        ["--url", "sqlite:///wrong.db", "submit", "fixed", "--url", "sqlite:///given.db"],
    ],
)
@pytest.mark.parametrize("how", ["--app", "BACKSTAY_APP"])
def test_a_url_before_the_command_wins_over_the_one_in_the_code_as_well(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], how: str
) -> None:
    (folder / "fixed.py").write_text(APP.format(name="fixed").replace("Backstay()", "Backstay('sqlite:///code.db')"))
    if how == "BACKSTAY_APP":
        monkeypatch.setenv(how, "fixed:app")
    ran = cli(*([] if how == "BACKSTAY_APP" else [how, "fixed:app"]), *arguments)
    assert (ran.code, ran.err) == (0, "")
    assert sorted(path.name for path in folder.glob("*.db")) == ["given.db"]


def test_a_url_that_cannot_be_meant_is_not_blamed_on_the_app(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "fine.py").write_text(APP.format(name="fine"))
    monkeypatch.setenv("BACKSTAY_APP", "fine:app")
    monkeypatch.setenv("BACKSTAY_URL", "postgresql://127.0.0.1/shop?wake=maybe")
    ran = cli("list")
    assert ran.code == 2
    assert "wake='maybe': use true or false" in ran.err
    assert "cannot be imported" not in ran.err
    assert f"{folder}/fine.py, line 2" in ran.err  # who asked for it


def test_what_one_command_was_given_does_not_reach_the_next(cli: Cli, queue: Queue, folder: Path) -> None:
    (folder / "here.py").write_text(APP.format(name="here"))
    assert cli("--url", "sqlite:///a.db", "--app", "here:app", "submit", "here").code == 0
    assert os.environ["BACKSTAY_APP"] == ""


def test_help_lists_every_command_and_every_exit_code(cli: Cli) -> None:
    text = cli("--help").out
    assert cli().out == text
    for word in (name for commands in _COMMANDS.values() for name in commands):
        assert f"\n  {word} " in text
    for code, meaning in MEANINGS.items():
        assert f"{code.value:<4} {meaning}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_command_names_the_one_that_was_meant(cli: Cli) -> None:
    ran = cli("lsit")
    assert ran.code == 2
    assert "Did you mean 'list'" in ran.err
