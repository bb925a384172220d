"""How help looks: arguments by their names alone, the options of every command last, commands under headings."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

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
    """Its names, what it takes, and what its author says of it: bounds and defaults stand in the words."""
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
