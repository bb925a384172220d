"""The commands of `python -m rules`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncpg
from embedding import WeightsMissing
from rich.console import Console

from backstay import BackstayError
from rules import database, output
from rules.health import health
from rules.jobs import app
from rules.models import DEFAULT
from rules.ollama import OllamaAway
from rules.server import ServerTrouble, default_folder, own_server
from rules.worker import Paused, work

QUESTIONS = ("how do we keep credentials safe?", "what to do when a server is down", "make pages load quicker")
TROUBLE = (
    *(BackstayError, ServerTrouble, WeightsMissing, OllamaAway, Paused, database.NotSetUp),
    *(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError),
)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # Wide enough for a whole row if the output is not a terminal: programs read it.
    width = None if sys.stdout.isatty() else 90
    console = Console(highlight=False, width=width, record=chosen.picture is not None)
    try:
        if os.environ.get("DATABASE_URL"):
            asyncio.run(_run(chosen, console))
        else:
            with own_server(default_folder()) as url:
                app.url = url
                asyncio.run(_run(chosen, console))
    except TROUBLE as error:
        print(f"rules: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if chosen.picture is not None:
        chosen.picture.write_text(output.picture(console))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rules",
        description="Rules in PostgreSQL, embedded by jobs, found by meaning. DATABASE_URL names the server; without it"
        " one is started, and its data are kept in RULES_FOLDER.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser("demo", help="all of the next five on the sample rules; what is done without a command")
    demo.add_argument("--picture", type=Path, help="keep what it printed, as an SVG")
    parser.set_defaults(picture=None)
    setup = commands.add_parser("setup", help="make tables and triggers; choose the model")
    setup.add_argument("--model", help=f"{DEFAULT} at first; another one embeds every rule again")
    load = commands.add_parser("load", help="store rules from a JSON file, the sample without one")
    load.add_argument("file", nargs="?", type=Path, default=database.SAMPLE)
    commands.add_parser(
        "work", help="embed until nothing waits; “backstay --app rules.jobs:app worker” goes on for ever"
    )
    search = commands.add_parser("search", help="find rules by their meaning")
    search.add_argument("question")
    search.add_argument("--limit", type=int, default=5, help="how many; 5")
    commands.add_parser("health", help="jobs by priority and state, and what each worker that runs did today")
    return parser


async def _run(chosen: argparse.Namespace, console: Console) -> None:
    async with app:
        connection = await database.connect()
        try:
            match chosen.command:
                case None | "demo":
                    await _demo(connection, console)
                case "setup":
                    output.set_up(console, await database.set_up(connection, chosen.model))
                case "load":
                    output.loaded(console, await database.load(connection, database.read_rules(chosen.file)))
                case "work":
                    await database.chosen_model(connection)  # a mismatch is said before any work starts
                    output.worked(console, await work(console))
                case "search":
                    found = await database.search(connection, chosen.question, chosen.limit)
                    output.found(console, chosen.question, found)
                case "health":
                    figures = await health()
                    output.jobs(console, figures)
                    output.workers(console, figures)
        finally:
            await connection.close()


async def _demo(connection: asyncpg.Connection[asyncpg.Record], console: Console) -> None:
    output.set_up(console, await database.set_up(connection))
    output.loaded(console, await database.load(connection, database.read_rules()))
    output.worked(console, await work(console))
    for question in QUESTIONS:
        output.found(console, question, await database.search(connection, question, 3))
    output.jobs(console, await health())
    console.print('Ask something yourself: examples/rules/run search "…"')
