"""The entry point: parses, runs a command, and turns every error into one line and an exit code."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Container, Sequence
from typing import Annotated

import typer
import typer.main
from typer.exceptions import TyperException

from holdfast.cli import exits, logged, options, output
from holdfast.cli.exits import Exit
from holdfast.cli.helping import Command, Group
from holdfast.cli.options import AppName, Url
from holdfast.errors import HoldfastError

# By heading: commands as "module.function", which is loaded when it is asked for. A noun has verbs, and bare it lists.
_COMMANDS: dict[str, dict[str, str | tuple[str, dict[str, str]]]] = {
    "Jobs": {
        "submit": "submit.submit",
        "list": "jobs.list_jobs",
        "show": "show.show",
        "watch": "jobs.watch",
        "logs": "logs.logs",
        "artifacts": "artifacts.artifacts",
        "results": "results.results",
        "tree": "tree.tree",
        "explain": "explain.explain",
        "cancel": "changing.cancel",
        "retry": "changing.retry",
        "rerun": "changing.rerun",
        "reprioritise": "changing.reprioritise",
        "reschedule": "changing.reschedule",
    },
    "Operating": {
        "serve": "serve.serve",
        "worker": "worker.worker",
        "workers": "workers.workers",
        "queues": ("queues.queues", {"pause": "queues.pause", "resume": "queues.resume", "limit": "queues.limit"}),
        "schedules": (
            "schedules.schedules",
            {
                "add": "schedules.add",
                "show": "schedules.show",
                "pause": "schedules.pause",
                "resume": "schedules.resume",
                "run": "schedules.run",
                "remove": "schedules.remove",
            },
        ),
        "dead": ("dead.dead", {"retry": "dead.retry"}),
        "keys": ("keys.keys", {"create": "keys.create", "revoke": "keys.revoke", "remove": "keys.remove"}),
        "stats": "stats.stats",
        "doctor": "doctor.doctor",
        "purge": "purge.purge",
    },
    "Setting up": {
        "migrate": "migrate.migrate",
        "move": "move.move",
        "bench": "bench.bench",
        "demo": "demo.demo",
    },
}


class _Root(Group):
    order = tuple(name for commands in _COMMANDS.values() for name in commands)


def root(
    context: typer.Context,
    url: Url = None,
    app: AppName = None,
    version: Annotated[bool, typer.Option("--version", help="Print the release.")] = False,
) -> None:
    """Durable jobs for Python: start on a file, and never lose one.

    Settings come from options, else from variables (HOLDFAST_URL, HOLDFAST_APP, …), else from [tool.holdfast] in
    pyproject.toml.
    """
    options.hand_on(context, url, app)
    if version:
        print(f"holdfast {_release()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def commands(only: str | None = None) -> typer.Typer:
    """The command line; with the name of a command, that one alone: a worker need not carry the others in memory."""
    cli = typer.Typer(
        cls=_Root,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=exits.table(),
    )
    cli.callback(invoke_without_command=True)(root)
    for heading, named in _COMMANDS.items():
        for name, command in named.items():
            if only is not None and name != only:
                continue
            if isinstance(command, tuple):
                cli.add_typer(_group(*command), name=name, rich_help_panel=heading)
            else:
                cli.command(name, cls=Command, rich_help_panel=heading)(_loaded(command))
    return cli


def _group(bare: str, named: dict[str, str]) -> typer.Typer:
    group = typer.Typer(cls=Group, rich_markup_mode=None, invoke_without_command=True)
    group.callback()(_loaded(bare))
    for name, command in named.items():
        group.command(name, cls=Command)(_loaded(command))
    return group


def _loaded(command: str) -> Callable[..., int | None]:
    module, _, function = command.partition(".")
    found: Callable[..., int | None] = getattr(importlib.import_module(f"holdfast.cli.{module}"), function)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    with logged.said() as said:
        return _run(arguments, said)


def _run(arguments: Sequence[str] | None, said: Container[str]) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    only = arguments[0] if arguments and arguments[0] in _Root.order else None
    try:
        code = typer.main.get_command(commands(only)).main(arguments, prog_name="holdfast", standalone_mode=False)
    except TyperException as error:
        output.say(_usage(error))
        return error.exit_code
    except exits.Interrupted as error:
        output.say(str(error))
        return Exit.INTERRUPTED
    except HoldfastError as error:
        if str(error) not in said:
            output.say(str(error))
        return exits.of_error(error)
    if code == Exit.INTERRUPTED:
        output.say("interrupted; stored jobs go on")
    return code if isinstance(code, int) else Exit.OK


def _release() -> str:
    try:
        return importlib.metadata.version("holdfast")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: run from its source)"


def _usage(error: TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return message if context is None else f'{message} (see "{context.command_path} --help")'
