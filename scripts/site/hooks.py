"""What the documentation site needs beyond its pages: files from outside `docs/`, and an index for language models.

Pages link to files of the repository, because they are read there too. On the site, pages that exist (the examples, the
changelog) keep their links; the name of any other file is shown without one, and so no link is dead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages and pictures of the repository that are part of the site, by their place in it.
BROUGHT = {
    "changelog.md": ROOT / "CHANGELOG.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "assets/mark.svg": ROOT / "src/backstay/dashboard/static/mark.svg",
    **{f"examples/{page.parent.name}.md": page for page in sorted((ROOT / "examples").glob("*/README.md"))},
    **{
        f"examples/{picture.relative_to(ROOT / 'examples')}": picture
        for pattern in ("*.svg", "*/*.svg", "*/images/*")
        for picture in sorted((ROOT / "examples").glob(pattern))
    },
}
PLACES = {source: place for place, source in BROUGHT.items()} | {ROOT / "README.md": "index.md"}

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, source in BROUGHT.items():
        if source.suffix == ".md":
            files.append(File.generated(config, place, content=source.read_text(encoding="utf-8")))
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave `docs/`. Code is left alone, and comments, which are for tests, are taken out."""
    place = page.file.src_uri
    source = BROUGHT.get(place, DOCS / place)
    parts, end = [], 0
    text = _COMMENT.sub("", markdown)
    for block in _CODE.finditer(text):
        parts += [_LINK.sub(lambda link: _link(link, source, place), text[end : block.start()]), _fence(block[0])]
        end = block.end()
    parts.append(_LINK.sub(lambda link: _link(link, source, place), text[end:]))
    return "".join(parts)


def _fence(block: str) -> str:
    """Return a block of code whose file, named after its language, is its title."""
    return re.sub(r"^( *```)([a-z]+) +(\S+)$", r'\1{ .\2 title="\3" }', block, count=1, flags=re.MULTILINE)


def _link(link: re.Match[str], source: Path, place: str) -> str:
    target, _, heading = link["target"].partition("#")
    if not target or target.startswith(("http:", "https:", "mailto:")):
        return link[0]
    file = (source.parent / target).resolve()
    if file.is_relative_to(DOCS):
        here = file.relative_to(DOCS).as_posix()
    elif file in PLACES:
        here = PLACES[file]
        heading = "" if here == "index.md" else heading  # the home page of the site has headings of its own
    elif file.exists():
        return link["text"] if link["picture"] else f"{link['text']} (`{file.relative_to(ROOT).as_posix()}`)"
    else:
        return link[0]  # the build warns of it
    there = os.path.relpath(here, os.path.dirname(place) or ".")
    return f"{link['picture']}[{link['text']}]({there}{'#' + heading if heading else ''})"


_navigation: list[Navigation] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    _navigation[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, an index of all pages with a line about each, and llms-full.txt, which has their text too."""
    index = [f"# {config.site_name}\n", f"> {config.site_description}\n"]
    whole = list(index)
    for item in _navigation[0].items:
        pages = _pages(item)
        if isinstance(item, Section):
            index.append(f"\n## {item.title}\n")
        for page in pages:
            text = _COMMENT.sub("", page.file.content_string).strip()
            index.append(f"- [{page.title}]({page.url}): {_first_sentence(text)}")
            whole.append(f"\n<!-- {page.url} -->\n\n{text}\n")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(index) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(whole) + "\n", encoding="utf-8")


def _pages(item: Any) -> list[Page]:
    if isinstance(item, Page):
        return [item]
    return [page for child in getattr(item, "children", None) or () for page in _pages(child)]


def _first_sentence(text: str) -> str:
    for paragraph in _CODE.sub("", text).split("\n\n"):
        line = " ".join(paragraph.split())
        if line and not line.startswith(("#", "|", "-", "!", "```", ":::")):
            return re.split(r"(?<=[.:]) ", _LINK.sub(lambda link: link["text"], line).replace("**", ""), maxsplit=1)[0]
    return ""
