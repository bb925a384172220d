#!/usr/bin/env python3
"""Measures the structure of the package: how many modules, how deep, and how far one request travels through them.

    .venv/bin/python scripts/structure.py [PACKAGE] [--json FILE] [--modules] [--no-runs]

PACKAGE is the name of a package under src/; it may be left out while there is only one.

From the sources, parsed and never imported:

* modules, lines, median and largest file: every .py file of the package, every line.
* contract layers: the layers that import-linter's contract in pyproject.toml names.
* longest import chain: modules on the longest path of the import graph. Every import counts, also inside a function or
  under TYPE_CHECKING; `from a import b` is an import of a.b where that is a module, and of a otherwise. Modules that
  import each other count as one step.
* one importer: modules that exactly one other module of the package imports. The conformance suite is left out, on
  both sides: a test runner imports its modules, one by one.
* gerunds: file names that end in "ing"; participles: that end in "ed" or "en", nouns such as "children" excepted.
* single calls: functions whose whole body, docstring aside, is one call, returned or not, awaited or not.
  Pass-throughs are those of them that hand on nothing but names, attributes and constants.

From real runs, traced with sys.setprofile in every thread. What a run loads or caches is warmed up by runs that are not
counted; then the median of several runs is taken, since threads of the store interleave differently each time:

* modules: the distinct files of the package, templates included, in which a function was entered.
* hops: the functions of the package in the order in which they were entered, in all threads, a coroutine once more each
  time that it is resumed; a hop is a step in that order from one file to another.
* calls: of these entries, those whose caller is in another file of the package (returns and resumptions by the event
  loop are no calls, so that this is the smaller figure).

The runs: (a) one job on SQLite, from app.submit to the return of app.result, with a worker in the same process, whose
handler is an async function of a payload and a context; (b) POST /jobs/{type} through the whole ASGI application;
(c) the dashboard's page of that job.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import json
import re
import statistics
import sys
import tempfile
import threading
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_UPS, RUNS = 3, 9
NOT_PARTICIPLES = frozenset({"children", "token", "tokens", "feed", "seed", "screen", "speed"})


# The sources


def package_under(source: Path, name: str | None) -> str:
    found = sorted(init.parent.name for init in source.glob("*/__init__.py"))
    if name is None and len(found) != 1:
        raise SystemExit(f"structure: name one of the packages under {source}: {', '.join(found) or 'there are none'}")
    name = name or found[0]
    if name not in found:
        raise SystemExit(f"structure: there is no package {name} under {source}")
    return name


def modules_of(source: Path, package: str) -> dict[str, Path]:
    modules = {}
    for path in sorted((source / package).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imported_by(module: str, path: Path, tree: ast.AST, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = len(parts) - node.level + (path.name == "__init__.py")
                base = ".".join([*parts[:kept], *([base] if base else [])])
            for alias in node.names:
                below = f"{base}.{alias.name}"
                found.add(below if below in modules else base)
    return (found & modules.keys()) - {module}


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, together (Tarjan); each component comes after all that it imports."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            at = stack.index(module)
            found.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph)))
    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    chains: dict[str, list[str]] = {}
    for component in components(graph):
        below = [chains[other] for module in component for other in graph[module] if other in chains]
        chain = ["=".join(sorted(component)), *max(below, key=len, default=[])]
        chains.update(dict.fromkeys(component, chain))
    return max(chains.values(), key=len)


def functions_in(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def single_call(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Call | None:
    body = function.body
    if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # its docstring
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return None
    value = body[0].value
    if isinstance(value, ast.Await):
        value = value.value
    return value if isinstance(value, ast.Call) else None


def passes_through(call: ast.Call) -> bool:
    handed = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(_plain(each.value if isinstance(each, ast.Starred) else each) for each in [call.func, *handed])


def _plain(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name | ast.Constant)


def contract_layers() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings.get("tool", {}).get("importlinter", {}).get("contracts", [])
    return max((len(contract["layers"]) for contract in contracts if contract["type"] == "layers"), default=0)


def read_sources(source: Path, package: str) -> dict[str, Any]:
    modules = modules_of(source, package)
    texts = {module: path.read_text(encoding="utf-8") for module, path in modules.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: len(text.splitlines()) for module, text in texts.items()}
    graph = {module: imported_by(module, path, trees[module], modules) for module, path in modules.items()}
    importers = {module: 0 for module in modules if "conformance" not in module.split(".")}
    for module in importers:
        for other in graph[module] & importers.keys():
            importers[other] += 1
    last = {module: module.rpartition(".")[2] for module in modules}
    functions = [function for tree in trees.values() for function in functions_in(tree)]
    calls = [call for function in functions if (call := single_call(function)) is not None]
    largest = max(lines, key=lambda module: lines[module])
    chain = longest_chain(graph)
    return {
        "modules": len(modules),
        "lines": sum(lines.values()),
        "median lines": statistics.median(lines.values()),
        "largest file": lines[largest],
        "largest file is": largest,
        "contract layers": contract_layers(),
        "longest import chain": len(chain),
        "longest import chain is": chain,
        "one importer": sum(count == 1 for count in importers.values()),
        "gerunds": sum(name.endswith("ing") for name in last.values()),
        "participles": sum(
            re.search("(ed|en)$", name) is not None and name not in NOT_PARTICIPLES for name in last.values()
        ),
        "functions": len(functions),
        "single calls": len(calls),
        "pass-throughs": sum(passes_through(call) for call in calls),
    }


# The runs


class Tracer:
    """Which functions of the package are entered, in all threads, while it is on."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._on = False
        self._entries: list[tuple[str, str | None]] = []
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    async def run(self, action: Callable[[], Awaitable[None]]) -> list[tuple[str, str | None]]:
        """The file of each function that was entered, and that of its caller where that is another of the package."""
        self._entries = []
        self._on = True
        try:
            await action()
        finally:
            self._on = False
        return self._entries

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._on or event != "call":
            return
        file = frame.f_code.co_filename
        if not file.startswith(self._prefix) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        called = caller if caller.startswith(self._prefix) and caller != file else None
        self._entries.append((file, called))


async def measured(tracer: Tracer, folder: Path, action: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    for _ in range(WARM_UPS):
        await tracer.run(action)
    modules, hops, calls, touched = [], [], [], set()
    for _ in range(RUNS):
        await asyncio.sleep(0.2)  # what the last one left to do is done, and the worker waits
        entries = await tracer.run(action)
        files = [file for file, _ in entries]
        modules.append(len(set(files)))
        hops.append(sum(file != following for file, following in pairwise(files)))
        calls.append(sum(caller is not None for _, caller in entries))
        touched.update(files)
    return {
        "modules": round(statistics.median(modules)),
        "hops": round(statistics.median(hops)),
        "calls": round(statistics.median(calls)),
        "touched": sorted(str(Path(file).relative_to(folder)) for file in touched),
    }


async def trace_runs(package: str) -> dict[str, Any]:
    import httpx

    library = importlib.import_module(package)
    server = importlib.import_module(f"{package}.server")
    folder = Path(library.__file__ or "").parent
    tracer = Tracer(folder)
    with tempfile.TemporaryDirectory() as place:
        app = getattr(library, package.capitalize())(f"sqlite:///{place}/jobs.db")

        async def echo(payload: Any, ctx: Any) -> Any:
            return payload

        echo.__annotations__ = {"payload": dict[str, int], "ctx": library.Context, "return": dict[str, int]}
        app.job("echo")(echo)

        async def job() -> None:
            submitted = await app.submit("echo", {"n": 1})
            await app.result(submitted.job_id, timeout=30)

        async with app:
            async with app.worker(concurrency=1):
                whole_job = await measured(tracer, folder, job)
            transport = httpx.ASGITransport(server.asgi(app, hosts=()))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                job_id = ""

                async def submit() -> None:
                    nonlocal job_id
                    answer = await client.post("/jobs/echo", json={"payload": {"n": 1}})
                    answer.raise_for_status()
                    job_id = answer.json()["job_id"]

                async def page() -> None:
                    answer = await client.get(f"/dashboard/jobs/{job_id}")
                    answer.raise_for_status()

                return {
                    "one SQLite job": whole_job,
                    "one HTTP submit": await measured(tracer, folder, submit),
                    "the dashboard's job page": await measured(tracer, folder, page),
                }


# What is printed


def rows(figures: dict[str, Any], names: bool) -> Iterator[tuple[str, str]]:
    sources = figures["sources"]
    for name, value in sources.items():
        if name == "largest file":
            yield name, f"{value:,} ({sources['largest file is']})"
        elif isinstance(value, int | float):
            yield name, f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    if names:
        yield "", "\n".join(sources["longest import chain is"])
    for name, run in figures.get("runs", {}).items():
        yield name, f"{run['hops']:,} hops, {run['calls']:,} calls, {run['modules']:,} modules"
        if names:
            yield "", "\n".join(run["touched"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("package", nargs="?", help="the package under src/, where there are several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--modules", action="store_true", help="name the modules of the longest chain and of each run")
    parser.add_argument("--no-runs", action="store_true", help="only what the sources say")
    options = parser.parse_args()
    package = package_under(ROOT / "src", options.package)
    figures: dict[str, Any] = {"package": package, "sources": read_sources(ROOT / "src", package)}
    if not options.no_runs:
        sys.path.insert(0, str(ROOT / "src"))
        figures["runs"] = asyncio.run(trace_runs(package))
    width = max(len(name) for name, _ in rows(figures, False))
    for name, value in rows(figures, options.modules):
        print(f"{name:{width}}  " + value.replace("\n", "\n" + " " * (width + 2)))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
