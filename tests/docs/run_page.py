"""Run the blocks of one page, in order, in the current folder: python run_page.py PAGE. Started by test_snippets."""

import ast
import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType

import asyncpg
from pages import Block, blocks


def main(page: Path) -> None:
    module = ModuleType("page")  # pages are not __main__: their `if __name__ == ...` is called by name below
    module.__dict__["__name__"] = "__main__"
    sys.modules["page"] = module
    sys.path.insert(0, os.getcwd())
    if shutil.which("curl") is None:
        os.environ["PATH"] += f"{os.pathsep}{Path(__file__).parent / 'stand_ins'}"
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.skip is None and block.test is None:
                run(block, page, module.__dict__, runner)


def run(block: Block, page: Path, namespace: dict[str, object], runner: asyncio.Runner) -> None:
    if block.file is not None:
        Path(block.file).write_text(block.code, encoding="utf-8")
    elif block.language == "python":
        run_python(block, page, namespace, runner)
    elif block.language == "sh":
        run_shell(block, page)
    elif block.language == "sql":
        runner.run(run_sql(block))


def run_python(block: Block, page: Path, namespace: dict[str, object], runner: asyncio.Runner) -> None:
    # Blank lines in front: a traceback names the line of the page.
    code: CodeType = compile(
        "\n" * (block.line - 1) + block.code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    value = eval(code, namespace)  # noqa: S307  our own pages
    if asyncio.iscoroutine(value):
        runner.run(value)


async def run_sql(block: Block) -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute(block.code)
    await connection.close()


def run_shell(block: Block, page: Path) -> None:
    print(f"{page.name}:{block.line}", flush=True)
    bash = ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{block.code}"]
    if code := subprocess.run(bash, stdin=subprocess.DEVNULL).returncode:
        sys.exit(f"{page}:{block.line}: exit status {code}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
