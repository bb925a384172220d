"""What people read is written in plain English: phrases that read as translated do not appear in it.

Pages, dashboard templates, help texts of the command line, string literals of the package, which are its messages, and
docstrings and comments of the folders in `FOLDERS`, and comments of SQL files.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from backstay.cli.main import commands
from tests.docs.pages import ROOT

# Each phrase, and what to write instead.
BANNED = {
    r"(?<!\bthere )\bis no (?!longer\b|more\b|such\b)\w+": "is not a …",
    r"\bwhoever\b": "the caller, anyone who; or name the role",
    r"\bnobody\b": "no one; or name who it is: no worker, no client",
    r"\bsomebody\b": "someone; or name who it is",
    r"\bbeside\b": "next to; besides",
    r"\b(?:go|goes|going|went) on\b": "continue, resume",
    r"\bstands? in(?: for)?\b": "is in; replaces",
    r"\bwhat (?:becomes|became|comes|came) of\b": "the outcome of, what happens to",
    r"(?:^|[.!?] +)Of (?:one|those|what)\b": "begin with the subject",
    r"\bheard of\b": "last seen",
    r"\bhangs? together\b": "is related to",
    r"\bcomes? again\b": "retry, repeat",
    r"\bsaid nothing\b": "no output",
    r"\bits time has come\b": "is due",
    r"\bis it well\b|\ball is well\b": "healthy",
    r"\bout of sight\b": "parked",
}
FOUND = re.compile("|".join(f"(?:{each})" for each in BANNED), re.IGNORECASE | re.MULTILINE)

SOURCE = ROOT / "src/backstay"
DASHBOARD = SOURCE / "dashboard/templates"
# Folders whose docstrings and comments are checked: add one when it is clean.
FOLDERS = ("src", "bench", "scripts", "examples", "tests/support", "tests/campaigns")
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *(each for each in sorted((ROOT / "bench").rglob("*.md")) if "node_modules" not in each.parts),
    *(ROOT / f"{each}.md" for each in ("README", "CHANGELOG", "CONTRIBUTING")),
]
TEMPLATES = sorted(each for each in DASHBOARD.rglob("*") if each.is_file())
# The conformance suite is a test: its strings are payloads and names of things.
MODULES = sorted(each for each in SOURCE.rglob("*.py") if "conformance" not in each.parts)


def hits(text: str) -> list[str]:
    """Each banned phrase in a text, with some words around it."""
    return [" ".join(text[max(0, each.start() - 30) : each.end() + 30].split()) for each in FOUND.finditer(text)]


def read(path: Path) -> str:
    """A page or template as it is read: without code and comments of templates, a paragraph in one line."""
    text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`…`", text)
    return re.sub(r"(?<=\S)\n[ \t]*(?=[\w(\"'])", " ", text)  # lines of one paragraph


def messages(path: Path) -> Iterator[str]:
    """The string literals of a module, and not its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in alone:
            yield each.value


def prose(source: str) -> Iterator[str]:
    """Yield the docstrings and comments of a module; comments on consecutive lines are one text."""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            yield " ".join(each.value.value.split())
    comments: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if comments and token.start[0] != last + 1:
            yield " ".join(comments)
            comments = []
        comments.append(token.string.lstrip("# "))
        last = token.start[0]
    yield " ".join(comments)


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options, and of the commands below it."""
    yield name, command.help or ""
    for each in command.params:
        yield f"{name} {each.name}", getattr(each, "help", None) or ""
    for below, each_command in getattr(command, "commands", {}).items():
        yield from helps(each_command, f"{name} {below}")


@pytest.mark.parametrize("paths", [PAGES, TEMPLATES], ids=["pages", "dashboard"])
def test_pages_and_templates_are_in_plain_english(paths: list[Path]) -> None:
    assert paths
    found = {str(path.relative_to(ROOT)): found for path in paths if (found := hits(read(path)))}
    assert found == {}


def test_help_texts_of_the_command_line_are_in_plain_english() -> None:
    texts = dict(helps(typer.main.get_group(commands()), "backstay"))
    assert "backstay queues pause" in texts
    assert {name: found for name, text in texts.items() if (found := hits(text))} == {}


def test_messages_are_in_plain_english() -> None:
    found = {
        str(path.relative_to(ROOT)): found
        for path in MODULES
        if (found := [each for text in messages(path) for each in hits(text)])
    }
    assert found == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_are_in_plain_english(folder: str) -> None:
    paths = [each for each in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in each.parts]
    assert paths
    found = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if (
            found := [each for text in prose(path.read_text(encoding="utf-8")) for each in hits(" ".join(text.split()))]
        )
    }
    assert found == {}


def test_comments_of_sql_files_are_in_plain_english() -> None:
    paths = sorted(SOURCE.rglob("*.sql"))
    assert paths
    comments = {path: " ".join(re.findall(r"--(.*)", path.read_text(encoding="utf-8"))) for path in paths}
    assert {path.name: found for path, text in comments.items() if (found := hits(text))} == {}


def test_docstrings_and_comments_of_a_module_are_read() -> None:
    source = '"""One.\n\nTwo."""\n\nx = "not this"  # three\n# four\n\n\ndef f() -> None:\n    """Five."""\n    # six\n'
    assert list(prose(source)) == ["One. Two.", "Five.", "three four", "six"]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("'abc' is no number", True),
        ("the claim is no longer valid", False),
        ("there is no such job", False),
        ("there is no queue at jobs.db", False),
        ("Whoever asks waits", True),
        ("queue default goes on", True),
        ("Of those, two ran.", True),
        ("The first ended. Of one that failed, the error is kept.", True),
        ("one of those jobs", False),
        ("the folder beside the file", True),
        ("besides the file", False),
    ],
)
def test_a_phrase_is_found_and_plain_english_is_not(text: str, is_found: bool) -> None:
    assert bool(hits(text)) is is_found
