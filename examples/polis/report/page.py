"""The frame of every page: one file that asks for nothing else.

There is no script in it, and its policy lets none run, nor anything be loaded: whatever a comment contains, the page
shows it as text.
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
    """`more` stands between the plot and what is said of it: a legend, a list."""
    return element("figure", plot, *more, element("figcaption", caption))
