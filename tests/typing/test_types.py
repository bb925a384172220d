"""Both type checkers accept the right uses of the API, and refuse the wrong ones where `uses.py` says so."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USES = Path(__file__).with_name("uses.py")
ROOT = Path(__file__).parents[2]
CHECK_SECONDS = 300  # cold, on a machine that runs other tests too: mypy then reads the whole package

Found = dict[int, set[str]]  # the rules that each line breaks


def expected(checker: int) -> Found:
    """What the comments announce: `# error: arg-type | reportArgumentType`, for mypy and for pyright."""
    lines = enumerate(USES.read_text(encoding="utf-8").splitlines(), 1)
    comments = {number: line.partition("  # error: ")[2] for number, line in lines}
    return {number: set(rules.split(" | ")[checker].split(", ")) for number, rules in comments.items() if rules}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_SECONDS)
    assert done.returncode == 1, done.stdout + done.stderr  # it found errors, and is not broken itself
    return done.stdout


@pytest.mark.timeout(CHECK_SECONDS + 20)
def test_mypy_accepts_the_right_uses_and_refuses_the_wrong_ones() -> None:
    said = run(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", USES)
    found: Found = {}
    for number, code in re.findall(r"^[^:\n]+:(\d+): error: .*\[([\w-]+)\]$", said, flags=re.MULTILINE):
        found.setdefault(int(number), set()).add(code)
    assert found == expected(0), said


@pytest.mark.timeout(CHECK_SECONDS + 20)
def test_pyright_accepts_the_right_uses_and_refuses_the_wrong_ones(tmp_path: Path) -> None:
    package = importlib.util.find_spec("pyright")
    assert package is not None
    assert package.origin is not None
    # Its own command asks the network for newer releases; the program that it carries does not.
    program = Path(package.origin).parent / "dist/index.js"
    node = shutil.which("node") or str(Path(sys.executable).with_name("node"))
    shutil.copy(USES, tmp_path)
    settings = {
        "include": [USES.name],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    said = run(node, program, "-p", tmp_path, "--pythonpath", sys.executable, "--outputjson")
    found: Found = {}
    for each in json.loads(said)["generalDiagnostics"]:
        found.setdefault(each["range"]["start"]["line"] + 1, set()).add(each["rule"])
    assert found == expected(1), said
