"""The frame of every page: one self-contained file.

It has no script, and its policy blocks scripts and external resources: whatever a comment contains, the page shows it
as text.
"""

from pathlib import Path

from .markup import element, text

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, *body: str, language: str = "en") -> bytes:
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{STYLE}</style>"
    )
    written = f'<!doctype html>\n<html lang="{text(language)}"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    return written.encode()


def section(name: str, title: str, *parts: str) -> str:
    return element("section", element("h2", text(title)), *parts, id=name)


def captioned(plot: str, caption: str, *more: str) -> str:
    """Return a figure with a caption; `more`, such as a legend or list, is between the two."""
    return element("figure", plot, *more, element("figcaption", caption))
