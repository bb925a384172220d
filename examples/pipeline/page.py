"""The report as one HTML file with its figures inside: no script, nothing fetched."""

import math
from collections import Counter
from html import escape

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733 }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .25rem .75rem .25rem 0 }
th { border-bottom: 2px solid #c9d3de } td { border-bottom: 1px solid #e6ebf0 } td.n, th.n { text-align: right }
dl { display: flex; flex-wrap: wrap; gap: 2rem } dt { color: #5b6b7b } dd { margin: 0; font-size: 1.6rem }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #5b6b7b }
svg rect { fill: #2f6f8f } svg circle { fill: #2f6f8f; fill-opacity: .45 } svg line { stroke: #c9d3de }
code { font-size: .9em }
"""


def render(totals: dict[str, int], pairs: list[tuple[str, str, float]], modules: list[dict]) -> str:
    imported = Counter(name for each in modules for name in each["imports"]).most_common(20)
    largest = sorted(modules, key=lambda each: -each["lines"])[:20]
    facts = {"modules": len(modules), **totals}
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The standard library, measured</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>The standard library, measured</h1>
<dl>{"".join(f"<div><dt>{escape(name)}</dt><dd>{value:,}</dd></div>" for name, value in facts.items())}</dl>
<h2>How long modules are</h2>{_histogram([each["lines"] for each in modules])}
<h2>Branches against lines</h2>{_scatter(modules)}
<h2>Most imported</h2>{_bars(imported)}
<h2>Modules that speak most alike</h2>
<p>Cosine similarity of their most telling words (TF-IDF over names, comments and docstrings).</p>
{_table(("one", "other", "similarity"), [(one, other, f"{score:.2f}") for one, other, score in pairs])}
<h2>Largest modules</h2>
{_table(("module", "telling words", "lines"), [_row(each) for each in largest])}
</body></html>
"""


def _row(module: dict) -> tuple[str, str, str]:
    return module["module"], " ".join(module["telling_words"]), f"{module['lines']:,}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def cells(tag: str, values: tuple[str, ...]) -> str:
        *texts, number = (escape(value) for value in values)
        return "".join(f"<{tag}>{text}</{tag}>" for text in texts) + f'<{tag} class="n">{number}</{tag}>'

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _histogram(values: list[int], width: int = 800, height: int = 220) -> str:
    """Classes double in width: 1-2, 2-4, 4-8 … lines."""
    classes = Counter(int(math.log2(value)) if value else 0 for value in values)
    first, last = min(classes, default=0), max(classes, default=0)
    step = width / (last - first + 1)
    tallest = max(classes.values(), default=1)
    parts = []
    for place, power in enumerate(range(first, last + 1)):
        count = classes[power]
        bar = (height - 50) * count / tallest
        x, middle = place * step, place * step + step / 2
        parts.append(f'<rect x="{x + 3:.1f}" y="{height - 25 - bar:.1f}" width="{step - 6:.1f}" height="{bar:.1f}"/>')
        parts.append(f'<text x="{middle:.1f}" y="{height - 30 - bar:.1f}" text-anchor="middle">{count}</text>')
        label = f"{2**power:,}–{2 ** (power + 1):,}"
        parts.append(f'<text x="{middle:.1f}" y="{height - 8}" text-anchor="middle">{label}</text>')
    return _figure(width, height, parts, "Number of modules by their number of lines")


def _scatter(modules: list[dict], width: int = 800, height: int = 360) -> str:
    """Both axes are logarithmic, or the few large modules would hide all others."""
    most_lines = math.log1p(max((each["lines"] for each in modules), default=1)) or 1.0
    most_branches = math.log1p(max((each["branches"] for each in modules), default=1)) or 1.0
    parts = [
        f'<line x1="40" y1="{height - 30}" x2="{width}" y2="{height - 30}"/>',
        f'<line x1="40" y1="0" x2="40" y2="{height - 30}"/>',
        f'<text x="{width - 60}" y="{height - 10}">lines →</text>',
        '<text x="0" y="12">branches</text>',
    ]
    for each in modules:
        x = 40 + (width - 50) * math.log1p(each["lines"]) / most_lines
        y = height - 30 - (height - 50) * math.log1p(each["branches"]) / most_branches
        title = f"{each['module']}: {each['lines']:,} lines, {each['branches']:,} branches"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(title)}</title></circle>')
    return _figure(width, height, parts, "Branches against lines, one dot per module")


def _bars(counts: list[tuple[str, int]], width: int = 800, row: int = 20) -> str:
    most = max((count for _, count in counts), default=1)
    parts = []
    for place, (name, count) in enumerate(counts):
        y, bar = place * row, (width - 230) * count / most
        parts.append(f'<text x="150" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="160" y="{y + 3}" width="{bar:.1f}" height="{row - 6}"/>')
        parts.append(f'<text x="{166 + bar:.1f}" y="{y + 14}">{count}</text>')
    return _figure(width, max(row, row * len(counts)), parts, "How many modules import each module")


def _figure(width: int, height: int, parts: list[str], label: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
