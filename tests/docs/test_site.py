"""The documentation site builds without a warning, works without the internet, and its index names every page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)[^>]* src=["']?([^"' >]+)|<link[^>]* href=["']?([^"' >]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    older = folder / "0.0"
    older.mkdir()
    command = [sys.executable, str(ROOT / "scripts/site/build.py"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stderr == ""
    return folder


def test_the_site_loads_nothing_from_the_internet(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = {a or b for page in pages for a, b in LOADED.findall(page.read_text(encoding="utf-8"))}
    assert len(pages) > 80
    assert sorted(each for each in loaded if each.startswith(("http:", "https:", "//"))) == []


def test_the_search_finds_every_page(site: Path) -> None:
    (newest,) = site.glob("*/search/search_index.json")
    found = {each["location"].partition("#")[0] for each in json.loads(newest.read_text(encoding="utf-8"))["docs"]}
    home = newest.parents[1]
    pages = {page.relative_to(home).as_posix() for page in home.rglob("*.html")} - {"404.html"}
    assert pages - found == set()


def test_an_index_for_language_models_names_every_page_of_the_site(site: Path) -> None:
    (index,) = site.glob("*/llms.txt")
    named = set(re.findall(r"\]\(([^)]+)\): \S", index.read_text(encoding="utf-8")))
    pages = {page.relative_to(index.parent).as_posix() for page in index.parent.rglob("*.html")} - {"404.html"}
    assert pages - named == set()
    whole = index.with_name("llms-full.txt").read_text(encoding="utf-8")
    assert all(f"<!-- {page} -->" in whole for page in pages)


def test_a_new_version_stands_next_to_the_older_ones_and_is_the_one_that_opens(site: Path) -> None:
    versions = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    newest = versions[0]["version"]
    assert [each["version"] for each in versions] == [newest, "0.0"]
    assert versions[0]["aliases"] == ["latest"]
    assert f"{newest}/index.html" in (site / "index.html").read_text(encoding="utf-8")
