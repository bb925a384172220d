"""Write docs/reference/coverage.md from scripts/generate/coverage.toml.

python scripts/generate/generate_coverage.py            write
python scripts/generate/generate_coverage.py --check    exit 1 if the page is not current
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
interface. This page lists every requirement of those systems (each field, endpoint, policy, figure and test) with a
verdict and the test that proves it: a test of the application, or of Backstay where the queue itself provides it.

| verdict | |
|---|---|
| works | as it was asked for, perhaps under [another name](../explanation/departures.md#names) ("ours") |
| differs | the same purpose is served otherwise: [departures](../explanation/departures.md) say why |
| receiver | the real client works against a receiver that checks what it gets: see [services](#services) |

A receiver is on the same machine as the test, for a service that cannot be had where tests run.

This page is generated from `scripts/generate/coverage.toml` by `scripts/generate/generate_coverage.py`;
`tests/docs/test_coverage.py` checks that every test in it exists and runs.
"""
VERDICTS = ("works", "differs", "receiver")


def read() -> dict[str, list[dict[str, str]]]:
    """Return the items and services in the order of the file: items of one system are consecutive."""
    found: dict[str, list[dict[str, str]]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def items() -> list[dict[str, str]]:
    return read()["item"]


def verdict(item: dict[str, str]) -> str:
    return item.get("verdict", "works")


def pages() -> list[tuple[Path, str]]:
    return [(PAGE, page(**read()))]


def page(item: list[dict[str, str]], service: list[dict[str, str]]) -> str:
    of_system = {name: list(group) for name, group in groupby(item, key=lambda each: each["system"])}
    lines = [HEAD, "| system | what it was | rebuilt in | requirements | work | differ | receiver |"]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for system, (example, was) in SYSTEMS.items():
        built = f"[examples/{example}](../../examples/{example}/README.md)"
        counts = _counts(of_system[system])
        lines.append(f"| [{system}](#{system.replace(' ', '-')}) | {was} | {built} | {counts} |")
    lines += [f"| together | | | {_counts(item)} |", "\n## Services\n"]
    lines += ["| service | client | in its place | test |", "|---|---|---|---|"]
    lines += [
        f"| {each['what']} | {_cell(each['client'])} | {_cell(each['instead'])} | `{each['test']}` |"
        for each in service
    ]
    whats = {each["name"]: each["what"] for each in service}
    for system in SYSTEMS:
        lines += [
            f"\n## {system[0].upper()}{system[1:]}\n",
            "| requirement | verdict | test |",
            "|---|---|---|",
        ]
        lines += [
            f"| {_cell(each['item'])} | {_verdict(each, whats)} | `{each['test']}` |" for each in of_system[system]
        ]
    return "\n".join(lines) + "\n"


def _counts(listed: list[dict[str, str]]) -> str:
    found = [sum(verdict(each) == name for each in listed) for name in VERDICTS]
    return " | ".join(str(number) for number in (len(listed), *found))


def _verdict(item: dict[str, str], whats: dict[str, str]) -> str:
    match verdict(item):
        case "differs":
            return f"differs: {_cell(item['why'])}"
        case "receiver":
            return f"receiver: {whats[item['service']]}"
        case found:
            return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    stale = [(path, text) for path, text in pages() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path, _ in stale:
            print(f"{path} is not current: run python scripts/generate/{Path(__file__).name}")
        return 1 if stale else 0
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
