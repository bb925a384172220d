"""The entry point: the table of commands, help, and every error as one line and an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Container, Sequence
from typing import Annotated, Any, ClassVar

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from backstay import settings
from backstay.cli import options, output
from backstay.cli.options import AppName, Url
from backstay.cli.output import Exit
from backstay.errors import BackstayError

_EVERYWHERE = ("--json", "--url", "--app", "--help")  # the same in every command: they stand last


class Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *_arguments(self, ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    order: ClassVar[tuple[str, ...]] = ()  # of the commands; those that are not named come first

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "[COMMAND …]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        limit = formatter.width - 6 - max(map(len, self.commands))
        for name in sorted(self.commands, key=lambda each: self.order.index(each) if each in self.order else -1):
            command = self.commands[name]
            heading = getattr(command, "rich_help_panel", None)
            row = (name.ljust(max(map(len, self.commands))), command.get_short_help_str(limit))
            sections.setdefault(heading if isinstance(heading, str) else "Commands", []).append(row)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def _arguments(command: Any, ctx: Any) -> list[str]:
    found = [each for each in command.get_params(ctx) if each.param_type_name == "argument"]
    return [each.metavar if each.required else f"[{each.metavar}]" for each in found]


def _option(parameter: Any) -> tuple[str, str]:
    """Return the names of an option with its metavar, and its help, which includes bounds and defaults."""
    names = ", ".join(sorted(parameter.opts, key=len))
    return names if parameter.is_flag else f"{names} {parameter.metavar}", parameter.help or ""


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    arguments: list[tuple[str, str]] = []
    own: list[tuple[str, str]] = []
    common: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            arguments.append((parameter.metavar, parameter.help or ""))
        else:
            (common if set(_EVERYWHERE) & set(parameter.opts) else own).append(_option(parameter))
    for heading, rows in (("Arguments", arguments), ("Options", own + common)):
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


# By heading: commands as "module.function", which is loaded when it is asked for. A noun has verbs, and bare it lists.
_COMMANDS: dict[str, dict[str, str | tuple[str, dict[str, str]]]] = {
    "Jobs": {
        "submit": "submit.submit",
        "list": "jobs.list_jobs",
        "show": "jobs.show",
        "watch": "jobs.watch",
        "logs": "logs.logs",
        "output": "stream.output",
        "artifacts": "files.artifacts",
        "results": "files.results",
        "tree": "tree.tree",
        "explain": "tree.explain",
        "export": "export.export",
        "replay": "export.replay",
        "cancel": "change.cancel",
        "retry": "change.retry",
        "rerun": "change.rerun",
        "event": "event.event",
        "reprioritise": "change.reprioritise",
        "reschedule": "change.reschedule",
        "update": "change.update",
        "remove": "change.remove",
    },
    "Operations": {
        "serve": "serve.serve",
        "mcp": "mcp.mcp",
        "worker": "worker.worker",
        "workers": "stats.workers",
        "queues": ("queues.queues", {"pause": "queues.pause", "resume": "queues.resume", "limit": "queues.limit"}),
        "types": ("types.types", {"pause": "types.pause", "resume": "types.resume", "unmark": "types.unmark"}),
        "limits": ("limits.limits", {"set": "limits.set_limit", "remove": "limits.remove"}),
        "schedules": (
            "schedules.schedules",
            {
                "add": "schedules.add",
                "show": "schedules.show",
                "pause": "schedules.pause",
                "resume": "schedules.resume",
                "run": "schedules.run",
                "backfill": "schedules.backfill",
                "remove": "schedules.remove",
            },
        ),
        "dead": ("change.dead", {"retry": "change.retry_dead"}),
        "keys": ("keys.keys", {"create": "keys.create", "revoke": "keys.revoke", "remove": "keys.remove"}),
        "stats": "stats.stats",
        "doctor": "admin.doctor",
        "purge": "admin.purge",
    },
    "Setup": {
        "migrate": "admin.migrate",
        "move": "move.move",
        "import": "imports.import_jobs",
        "encryption-key": "admin.encryption_key",
        "bench": "bench.bench",
        "demo": "demo.demo",
    },
}


_SPELLINGS = {"reprioritize": "reprioritise"}


class _Root(Group):
    order = tuple(name for commands in _COMMANDS.values() for name in commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, _SPELLINGS.get(cmd_name, cmd_name))


def root(
    context: typer.Context,
    url: Url = None,
    app: AppName = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Durable background jobs for Python: start with a file, never lose a job.

    Settings are read from options, then from environment variables (BACKSTAY_URL, BACKSTAY_APP, …), then from
    [tool.backstay] in pyproject.toml.
    """
    options.hand_on(context, url, app)
    if version:
        print(f"backstay {settings.release()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def commands(only: str | None = None) -> typer.Typer:
    """Return the command line; given the name of a command, with that one only, because a worker need not keep the
    others in memory."""
    cli = typer.Typer(
        cls=_Root,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=output.table(),
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
    found: Callable[..., int | None] = getattr(importlib.import_module(f"backstay.cli.{module}"), function)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal need not be UTF-8
    with output.said() as said:
        return _run(arguments, said)


def _run(arguments: Sequence[str] | None, said: Container[str]) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    only = _named(arguments)
    try:
        code = typer.main.get_command(commands(only)).main(arguments, prog_name="backstay", standalone_mode=False)
    except TyperException as error:
        output.say(_usage(error))
        return error.exit_code
    except output.Interrupted as error:
        output.say(str(error))
        return Exit.INTERRUPTED
    except BackstayError as error:
        if str(error) not in said:
            output.say(str(error))
        return output.of_error(error)
    if code == Exit.INTERRUPTED:
        output.say("interrupted; stored jobs are safe")
    return code if isinstance(code, int) else Exit.OK


def _named(arguments: Sequence[str]) -> str | None:
    """Return the command that is asked for, if all before it are --url and --app with their values."""
    left = iter(arguments)
    for each in left:
        if each in ("--url", "--app"):
            next(left, None)
        elif not each.startswith(("--url=", "--app=")):
            return each if each in _Root.order else None
    return None


def _usage(error: TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return message if context is None else f'{message} (see "{context.command_path} --help")'
