"""Builds the documentation site: `python scripts/site/build.py FOLDER`.

The site of this version goes to FOLDER/VERSION, next to those of earlier versions that are already there. The menu of
versions, and the page that leads to the newest, follow from what is in the folder. Nothing is fetched.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tomllib
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.compile(r"\d+\.\d+")
TO_THE_NEWEST = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Backstay</title>
<meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">Backstay {0}</a></html>
"""


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print("usage: scripts/docs [FOLDER]", file=sys.stderr)
        return 2
    folder = Path(arguments[0] if arguments else ROOT / "site").resolve()
    version = ".".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"].split(".")[:2])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / version))
        build(config)
    except Abort:
        print("the site was not built: each warning above is an error here", file=sys.stderr)
        return 1
    versions = sorted((each.name for each in folder.iterdir() if VERSION.fullmatch(each.name)), key=_numbers)[::-1]
    entries = [
        {"version": each, "title": each, "aliases": ["latest"] if each == versions[0] else []} for each in versions
    ]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (folder / "index.html").write_text(TO_THE_NEWEST.format(versions[0]))
    print(f"The documentation is in {folder / version / 'index.html'}")
    return 0


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
