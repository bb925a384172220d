"""The pages, and the blocks of code in them.

```python            runs, in order, in one namespace per page; `await` is allowed at the top
```python jobs.py    is written to that file
```toml pyproject.toml, ```text notes.txt … likewise
```sh                runs in bash, line by line, in the page's folder
```sql               runs on a database of the page's own, which its other blocks find in DATABASE_URL
                     (and in DYNAMODB_URL, tables of its own)

<!-- snippet: before      code that a reader does not need to see, run like a block of Python
…
-->
<!-- snippet: skip reason -->    the next block is not run
<!-- snippet: run by tests/imports/test_roll_back.py -->    the next block runs in that test, which makes what it needs,
                     and takes the pages that name it from `run_by`
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_PART = re.compile(
    r"^(?P<indent> *)```(?P<language>[a-z]*)(?: +(?P<file>\S+))?\n(?P<code>.*?)^ *```$"
    r"|<!-- snippet: before\n(?P<hidden>.*?)-->"
    r"|<!-- snippet: run by (?P<test>\S+) -->"
    r"|<!-- snippet: skip (?P<reason>[^>]+?) -->",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    language: str
    code: str
    line: int
    file: str | None
    skip: str | None
    test: str | None  # which runs it, instead of the page


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found, skip, test = [], None, None
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 2
        if part["reason"]:
            skip = part["reason"]
        elif part["test"]:
            test = part["test"]
        elif part["hidden"]:
            found.append(Block("python", part["hidden"], line, None, None, None))
        else:
            code = "".join(each.removeprefix(part["indent"]) for each in part["code"].splitlines(keepends=True))
            found.append(Block(part["language"], code, line, part["file"], skip, test))
            skip = test = None
    return found


def run_by(test: str) -> dict[Path, str]:
    """The code that a test has to run, by page."""
    return {
        page: code for page in PAGES if (code := "\n".join(each.code for each in blocks(page) if each.test == test))
    }


def wants_database(page: Path) -> bool:
    return "DATABASE_URL" in page.read_text(encoding="utf-8")


def wants_tables(page: Path) -> bool:
    return "DYNAMODB_URL" in page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its blocks and comments."""
    return re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def params_of_reasons() -> dict[str, set[str]]:
    """The parameters that the reference lists, by reason of explain."""
    text = (ROOT / "docs/reference/operating.md").read_text(encoding="utf-8").partition("\n### Reasons\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", text.partition("\n## ")[0], flags=re.MULTILINE)
    # Values in parentheses are not names of parameters.
    return {reason: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell))) for reason, cell in rows}
