"""Write docs/reference/coverage.md from scripts/docs/coverage.toml.

python scripts/docs/generate_coverage.py            write
python scripts/docs/generate_coverage.py --check    exit 1 if the page is not current
"""

import sys
import tomllib
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("coverage.toml")
PAGE = ROOT / "docs/reference/coverage.md"

# Each system, where it is rebuilt, and what it was.
SYSTEMS = {
    "the analysis queue": ("polis", "analysis jobs for Polis conversations, on DynamoDB"),
    "results by job id": ("polis", "the result tables of those jobs, keyed by job id"),
    "the embedding queue": ("rules", "embeddings of rules, on PostgreSQL"),
    "the audio service": ("analysis", "persistent jobs of an audio analysis service, on SQLite"),
    "the scheduled queue": ("companion", "daily summaries and user syncs, on DynamoDB"),
}

HEAD = """# What is covered

Backstay replaces five job systems that grew apart. Each is rebuilt in `examples/`, using only Backstay's public
interface. This page lists every requirement of those systems (each field, endpoint, policy, figure and test) with the
test that proves it: a test of the application, or of Backstay where the queue itself provides it. What is done
differently is listed, with the reason, under [departures](../explanation/departures.md).

This page is generated from `scripts/docs/coverage.toml` by `scripts/docs/generate_coverage.py`;
`tests/docs/test_coverage.py` checks that every test in it exists and runs.
"""


def items() -> list[dict[str, str]]:
    """Return the items in the order of the file: those of one system are consecutive."""
    read: list[dict[str, str]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["item"]
    return read


def pages() -> list[tuple[Path, str]]:
    return [(PAGE, page(items()))]


def page(listed: list[dict[str, str]]) -> str:
    of_system = {name: list(group) for name, group in groupby(listed, key=lambda each: each["system"])}
    lines = [HEAD, "| system | what it was | rebuilt in | items |", "|---|---|---|---|"]
    for system, (example, was) in SYSTEMS.items():
        built = f"[examples/{example}](../../examples/{example}/README.md)"
        lines.append(f"| [{system}](#{system.replace(' ', '-')}) | {was} | {built} | {len(of_system[system])} |")
    for system in SYSTEMS:
        lines += [
            f"\n## {system[0].upper()}{system[1:]}\n",
            "| requirement | test |",
            "|---|---|",
        ]
        lines += [f"| {_cell(each['item'])} | `{each['test']}` |" for each in of_system[system]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    stale = [(path, text) for path, text in pages() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path, _ in stale:
            print(f"{path} is not current: run python scripts/docs/{Path(__file__).name}")
        return 1 if stale else 0
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
