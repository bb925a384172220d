"""Writes HTML and SVG. Untrusted text goes through `text` or `element`: both escape it."""

import re
from collections.abc import Container
from html import escape as text
from typing import Any

__all__ = ["element", "number", "prose", "text"]

_CITED = re.compile(r"\[(\d{1,12})\]([.,;:!?]*)")  # and the punctuation that must not begin the next line


def number(value: float) -> str:
    """Format a coordinate: one decimal is finer than a screen."""
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, /, *inside: str, **attributes: Any) -> str:
    """Return an element. `inside` is markup already; attributes are escaped. `class_` is class, `stroke_width` is
    stroke-width."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>" if tag == "input" else f"<{tag}{written}>{''.join(inside)}</{tag}>"


def prose(written: str, known: Container[int]) -> str:
    """Convert plain text to paragraphs and lists; [12] becomes a link if there is a comment 12."""
    return "".join(_block(block, known) for block in re.split(r"\n\s*\n", written.strip()) if block.strip())


def _block(block: str, known: Container[int]) -> str:
    lines = [line.strip() for line in block.splitlines()]
    if all(line.startswith(("- ", "* ")) for line in lines):
        return element("ul", *(element("li", _cited(line[2:], known)) for line in lines))
    if lines[0].startswith("#"):
        heading = element("h4", _cited(lines[0].lstrip("# "), known))
        return heading + (_block("\n".join(lines[1:]), known) if lines[1:] else "")
    return element("p", _cited(" ".join(lines), known))


def _cited(line: str, known: Container[int]) -> str:
    def link(found: re.Match[str]) -> str:
        comment = int(found[1])
        if comment not in known:
            return found[0]
        return f'<span class="kept">{cite(comment)}{found[2]}</span>' if found[2] else cite(comment)

    return _CITED.sub(link, text(line))


def cite(comment_id: int) -> str:
    return f'<a class="cite" href="#c{comment_id}">{comment_id}</a>'
