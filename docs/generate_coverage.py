"""Write docs/reference/coverage.md from docs/coverage.toml.

python docs/generate_coverage.py            write
python docs/generate_coverage.py --check    exit 1 where the page is not current
"""

import sys
import tomllib
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS / "coverage.toml"
PAGE = DOCS / "reference" / "coverage.md"

# Each system, where it is built, and in a few words what it was.
SYSTEMS = {
    "the analysis queue": ("polis", "jobs of the analysis of Polis conversations, on DynamoDB"),
    "results by job id": ("polis", "the tables that those jobs fill, with the job's id as their key"),
    "the embedding queue": ("rules", "embeddings of rules, on PostgreSQL"),
    "the audio service": ("analysis", "jobs of an audio analysis service that outlive it, on SQLite"),
    "the scheduled queue": ("companion", "daily summaries and syncs of users, on DynamoDB"),
}

HEAD = """# What is covered

Holdfast replaces five job systems that grew apart. Each is built anew in `examples/`, on Holdfast's public interface
alone. Here stands everything that was asked of them, each field, endpoint, policy, figure and test, with the test
that shows it: a test of the application, or of Holdfast where the queue does it by itself. What is done otherwise than
it was asked for is listed, with the reason, under [departures](../explanation/departures.md).

This page is made from `docs/coverage.toml` by `docs/generate_coverage.py`; `tests/docs/test_coverage.py` checks that
every test in it is there and runs.
"""


def items() -> list[dict[str, str]]:
    """As they stand in the file: those of one system in a row."""
    read: list[dict[str, str]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["item"]
    return read


def pages() -> list[tuple[Path, str]]:
    return [(PAGE, page(items()))]


def page(listed: list[dict[str, str]]) -> str:
    of_system = {name: list(group) for name, group in groupby(listed, key=lambda each: each["system"])}
    lines = [HEAD, "| system | what it was | built in | items |", "|---|---|---|---|"]
    for system, (example, was) in SYSTEMS.items():
        built = f"[examples/{example}](../../examples/{example}/README.md)"
        lines.append(f"| [{system}](#{system.replace(' ', '-')}) | {was} | {built} | {len(of_system[system])} |")
    for system in SYSTEMS:
        lines += [
            f"\n## {system[0].upper()}{system[1:]}\n",
            "| what was asked for | the test that shows it |",
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
            print(f"{path} is not current: run python docs/{Path(__file__).name}")
        return 1 if stale else 0
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
