"""The entry point: parses, runs a command, and turns every error into one line and an exit code."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
import typer.main
from typer.exceptions import TyperException

from holdfast.cli import bench, dead, exits, jobs, migrate, output, show, submit, worker, workers
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, Url
from holdfast.errors import HoldfastError

cli = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.table(),
)


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    url: Url = None,
    app: AppName = None,
    version: Annotated[bool, typer.Option("--version", help="Print the release.")] = False,
) -> None:
    """Durable jobs for Python: start on a file, and never lose one.

    Settings come from options, else from HOLDFAST_… variables, else from [tool.holdfast] in pyproject.toml.
    """
    # What stands before the command is the default for what stands after it.
    if url is not None:
        os.environ["HOLDFAST_URL"] = url
    if app is not None:
        os.environ["HOLDFAST_APP"] = app
    if version:
        print(f"holdfast {_release()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


_COMMANDS: dict[str, Callable[..., int | None]] = {
    "submit": submit.submit,
    "worker": worker.worker,
    "list": jobs.list_jobs,
    "show": show.show,
    "watch": jobs.watch,
    "logs": jobs.logs,
    "cancel": jobs.cancel,
    "retry": jobs.retry,
    "dead": dead.dead,
    "workers": workers.workers,
    "migrate": migrate.migrate,
    "bench": bench.bench,
}
for _name, _command in _COMMANDS.items():
    cli.command(_name)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    try:
        code = typer.main.get_command(cli).main(arguments, prog_name="holdfast", standalone_mode=False)
    except TyperException as error:
        output.say(_usage(error))
        return error.exit_code
    except HoldfastError as error:
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
    return message if context is None else f'{message}; see "{context.command_path} --help"'
