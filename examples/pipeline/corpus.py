"""What the pipeline reads: the source of Python's own standard library, which every machine has."""

import hashlib
import json
import os
import sysconfig
import tokenize
from pathlib import Path
from typing import NamedTuple

LEFT_OUT = {"__pycache__", "dist-packages", "encodings", "idle_test", "lib2to3", "site-packages", "test", "tests"}
RECIPE = "1"  # part of every content hash: a new analysis must not reuse the results of an old one


class Shard(NamedTuple):
    """Some modules, and a hash of their text: the same hash means the same work."""

    modules: list[str]  # paths below the library
    content_hash: str


def library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def modules(root: Path, at_most: int) -> list[Path]:
    found = (path for path in root.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(root).parts))
    return sorted(found)[:at_most]


def plan(root: Path, at_most: int, shard_count: int) -> list[Shard]:
    """Modules dealt out so that every shard has about the same number of bytes."""
    contents = {path: path.read_bytes() for path in modules(root, at_most)}
    by_size = sorted(contents, key=lambda path: (-len(contents[path]), path))
    shards: list[list[Path]] = [[] for _ in range(min(shard_count, len(by_size)))]
    loads = [0] * len(shards)
    for path in by_size:
        lightest = loads.index(min(loads))
        shards[lightest].append(path)
        loads[lightest] += len(contents[path]) + 1
    return [_shard(root, sorted(shard), contents) for shard in shards]


def _shard(root: Path, paths: list[Path], contents: dict[Path, bytes]) -> Shard:
    digest = hashlib.sha256(RECIPE.encode())
    names = [path.relative_to(root).as_posix() for path in paths]
    for name, path in zip(names, paths, strict=True):
        digest.update(f"\0{name}\0{len(contents[path])}\0".encode())
        digest.update(contents[path])
    return Shard(names, digest.hexdigest())


def hash_of(shards: list[Shard]) -> str:
    return hashlib.sha256("\n".join(shard.content_hash for shard in shards).encode()).hexdigest()


def read_source(path: Path) -> str:
    """The text of a module in the encoding that it declares."""
    with tokenize.open(path) as file:
        return file.read()


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all: a handler may be killed here, and a repeated one writes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def write_json(path: Path, document: object) -> None:
    write_whole(path, json.dumps(document, ensure_ascii=False))


def read_json(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))
