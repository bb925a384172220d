"""Write the generated parts of docs/explanation/architecture.md: the import layers and the map of modules.

python scripts/generate/generate_architecture.py            write
python scripts/generate/generate_architecture.py --check    exit 1 if the page is not current

Layers come from the import-linter contract in pyproject.toml, the map from the first line of each module's docstring.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = next(each for each in Path(__file__).resolve().parents if (each / "pyproject.toml").is_file())
SOURCE = ROOT / "src" / "backstay"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"

# What a reader should know about each layer, by its first member.
LAYERS = {
    "cli": "the command line",
    "dashboard": "pages for people",
    "server": "the HTTP API",
    "client": "the HTTP client, help for tests, and queues of other systems, which become jobs here",
    "sync": "the application object, blocking and async, which every face uses; moves to another store",
    "worker": "runs jobs; stores jobs: independent of each other",
    "ops": "operations, and what users hold in their hands",
    "core": "pure decisions, plain data, the port",
}


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def layers() -> list[list[str]]:
    """Return the layers of the contract, from the top; a bar separates members that may not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [found] = [each for each in contracts if each["type"] == "layers"]
    return [re.split(r" [:|] ", each) for each in found["layers"]]


def layer_table() -> str:
    lines = ["| | layer | what it is |", "|---|---|---|"]
    for number, members in enumerate(layers(), 1):
        names = ", ".join(f"`{each}`" for each in members)
        lines.append(f"| {number} | {names} | {LAYERS[members[0]]} |")
    return "\n".join(lines)


def module_map() -> str:
    packages = sorted({path.parent for path in SOURCE.rglob("*.py")}, key=lambda each: each.relative_to(SOURCE).parts)
    sections = []
    for package in packages:
        name = package.relative_to(SOURCE.parent).as_posix()
        lines = [f"### {name}/", "", first_line(package / "__init__.py"), "", "| module | what it is |", "|---|---|"]
        rows = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        lines += [f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |" for path in rows]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def replaced(text: str, name: str, content: str) -> str:
    """Return the page with a new text between the two comments of this name."""
    begin, end = f"<!-- generated: {name} -->\n", f"\n<!-- end: {name} -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE}: {begin.strip()} … {end.strip()} is missing")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def pages() -> list[tuple[Path, str]]:
    text = PAGE.read_text(encoding="utf-8")
    text = replaced(text, "layers", layer_table())
    return [(PAGE, replaced(text, "modules", module_map()))]


def main() -> int:
    [(path, text)] = pages()
    stale = path.read_text(encoding="utf-8") != text
    if "--check" in sys.argv[1:]:
        if stale:
            print(f"{path} is not current: run python {Path(__file__).relative_to(ROOT)}")
        return 1 if stale else 0
    if stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
