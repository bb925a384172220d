"""Links lead somewhere: to pages, to headings in them, to files and to the tests that prove a promise."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (heading and file.suffix == ".md" and heading not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_exist(page: Path) -> None:
    missing = [
        f"{file}::{test}"
        for file, test in TEST.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / file).is_file() or not re.search(rf"\bdef {test}\(", (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """By links, and by the menu of the site, which begins at its home page."""
    home, menu = ROOT / "docs/index.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        links = (target.partition("#")[0] for target in LINK.findall(prose(page)))
        ahead += [(page.parent / link).resolve() for link in links if link and "://" not in link]
        if page == home:
            ahead += [ROOT / "docs" / path for path in re.findall(r"\S+\.md", menu)]
    assert [name(page) for page in PAGES if page not in seen] == []


def test_every_promise_names_a_test() -> None:
    """In the tables of promises, and of those that were broken, no row goes without."""
    page = (ROOT / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
    promises = page.partition("\n## How the crash tests judge")[0]
    assert promises != page
    lines = promises.splitlines()
    heads = {lines[number - 1] for number, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for line in lines if line.startswith("| ") and line not in heads]
    assert len(heads) == 2
    assert len(rows) > 60
    assert [row for row in rows if not TEST.search(row)] == []


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
