"""The reference says everything that the code has, and nothing that it has not."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest
import typer.main

from backstay import AuditRecord, Backstay, context, errors, job, limits, outcomes, settings
from backstay.cli import daemon, output
from backstay.cli.main import commands
from backstay.client import Client
from backstay.core import lifecycle, schedules
from backstay.core.access_keys import SCOPES, KeyInfo
from backstay.core.queues import Queue
from backstay.core.schedules import MISSED, ScheduleInfo, ScheduleOptions
from backstay.core.stats import Figures, TotalFigures
from backstay.engines.postgres import connection as postgres_connection
from backstay.engines.postgres.triggers import trigger_sql
from backstay.handlers import Handler, HandlerOptions
from backstay.ops.explanation import Explanation, Params, Reason
from backstay.ops.retention import Retention
from backstay.options import SubmitOptions
from tests.docs.pages import ROOT, params_of_reasons
from tests.support.servers.postgres import Postgres

REFERENCE = ROOT / "docs/reference"
COMMANDS = typer.main.get_group(commands()).commands
NOT_FOR_USERS = {"BACKSTAY_FAILPOINTS", "BACKSTAY_SUPERVISOR_PIPE", "BACKSTAY_SUPERVISOR_PULSE", "BACKSTAY_KEPT"}

ACCESS = {  # methods of Backstay that access.md lists
    "create_key", "api_keys", "check_key", "revoke_key", "remove_key", "open_session", "close_session", "audited",
    "audit_trail",
}  # fmt: skip
OTHERS = {  # those that other pages describe; operating.md lists the rest
    "job", "batch_job", "pipeline", "lifespan", "middleware", "worker", "maintenance", "name",
    "open", "close", "sync", "wait", "watch", "store", "is_open", "files", "location", "lease_seconds", "poll_seconds",
    "migrate", "exists", "would_erase", "erase", "migration_sql",
    "submit", "submit_many", "get", "seen_live", "find", "result", "tree", "history", "counts", "dead", "workers",
    "results", "result_rows", "result_row", "subject_rows", "artifacts", "artifact", "open_artifact",
    "cancel", "retry", "rerun", "retry_dead", "get_many", "children", "tree_queues",
}  # fmt: skip
INTERNAL = {  # for the server and the blocking API
    "listen", "record_seconds", "remote_work", "key_records", "server_secret", "stored_rows", "submit_from_thread",
}  # fmt: skip


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def rows(name: str) -> list[str]:
    """The first cell of every row of the page's tables, without its backticks."""
    cells = re.findall(r"^\| `([^`]+)`", page(name), flags=re.MULTILINE)
    assert len(cells) == len(set(cells)), "a name is listed twice"
    return cells


def section(name: str, heading: str) -> list[str]:
    """The first cells of the tables under one heading of a page."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page(name), flags=re.MULTILINE | re.DOTALL)
    assert found, f"{name}.md has no heading {heading!r}"
    return re.findall(r"^\| `([^`]+)`", found[1], flags=re.MULTILINE)


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts/generate" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", ["generate_diagram", "generate_reference"])
def test_generated_parts_are_current(script: str) -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in generator(script).pages() if path.read_text("utf-8") != text]
    assert stale == [], f"run: python scripts/generate/{script}.py"


def test_the_diagram_has_every_edge() -> None:
    text = (ROOT / "docs/explanation/lifecycle.md").read_text(encoding="utf-8")
    for event, source, target in lifecycle.edges():
        edge = f"    {source.value if source else '[*]'} --> {target.value}: "
        assert any(line.startswith(edge) and event.value in line for line in text.splitlines()), edge + event


def test_every_error_is_listed() -> None:
    public = {
        name
        for module in (errors, outcomes)
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, errors.BackstayError)
    }
    assert set(rows("errors")) == public


def test_every_limit_is_listed() -> None:
    units = {"KIB", "MIB", "GIB"}
    assert set(rows("limits")) == {name for name in vars(limits) if name.isupper()} - units


def test_every_submit_option_is_listed() -> None:
    assert rows("submit-options") == list(SubmitOptions.__annotations__)


def test_every_handler_option_is_listed_with_its_default() -> None:
    assert rows("handler-options") == list(HandlerOptions.__annotations__)
    signature = inspect.signature(Handler).parameters
    for name, default in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page("handler-options"), flags=re.MULTILINE):
        match signature[name].default:
            case None:
                assert re.match(r"no|by kind|the app's|`Backoff", default), name
            case str() as text:
                assert default == f'`"{text}"`', name
            case bool() as switch:
                assert default == f"`{switch}`", name
            case number:
                assert default.removesuffix(" s") == f"{number:g}", name


def test_everything_of_operating_is_listed() -> None:
    public = {name for name in vars(Backstay) if not name.startswith("_")}
    head = page("operating").partition("\n## ")[0]
    listed = re.findall(r"^\| `app\.(\w+)\(([^)]*)\)`", head, flags=re.MULTILINE)
    assert public >= ACCESS | OTHERS | INTERNAL
    assert {name for name, _ in listed} == public - ACCESS - OTHERS - INTERNAL
    for name, arguments in listed:
        known = inspect.signature(getattr(Backstay, name)).parameters
        named = [each.strip().partition("=")[0] for each in arguments.split(",") if each.strip("… ")]
        assert [each for each in named if each not in known] == [], name


def test_every_reason_of_explain_is_listed_with_its_parameters() -> None:
    fields = [name.removesuffix("()") for name in section("operating", "What `explain` can find")]
    assert set(fields) == {*Explanation.__struct_fields__, "parts"}
    assert set(section("operating", "Reasons")) == {each.value for each in Reason}
    assert set().union(*params_of_reasons().values()) == set(Params.__struct_fields__)


def test_every_field_of_a_queue_a_schedule_and_the_figures_is_listed() -> None:
    assert section("operating", "`Queue`") == [*Queue.__struct_fields__, "paused"]
    assert section("operating", "Figures") == list(Figures.__struct_fields__)
    assert section("operating", "Totals") == list(TotalFigures.__struct_fields__)
    assert section("schedules", "`ScheduleInfo`") == [
        *ScheduleInfo.__struct_fields__,
        "paused",
        "ended",
        "ticks(after, most)",
    ]


def test_everything_about_access_is_listed() -> None:
    listed = re.findall(r"^\| `app\.(\w+)\(", page("access"), flags=re.MULTILINE)
    assert set(listed) == ACCESS
    assert section("access", "Scopes") == list(SCOPES)
    assert section("access", "`KeyInfo`") == list(KeyInfo.__struct_fields__)
    assert section("access", "`AuditRecord`") == list(AuditRecord.__struct_fields__)


def test_every_method_of_the_client_is_listed() -> None:
    listed = [row.partition("(")[0] for row in section("client", "Methods")]
    assert listed and set(listed) == {name for name in vars(Client) if not name.startswith("_")}


def test_every_option_and_word_of_a_schedule_is_listed() -> None:
    options = page("schedules").partition("## Options")[2].partition("\n## ")[0]
    assert re.findall(r"^- `(\w+)`$", options, flags=re.MULTILINE) == list(ScheduleOptions.__annotations__)
    assert {word.strip('"') for word in section("schedules", "Missed ticks")} == set(MISSED)
    rules = re.findall(r"`(@\w+)`", page("schedules").partition("## The rule")[2].partition("\n## ")[0])
    assert set(rules) == set(schedules.NICKNAMES)


async def test_every_check_of_the_check_up_is_listed(tmp_path: Path) -> None:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert section("operating", "The check-up") == [finding.check for finding in await app.check_up()]


async def test_what_is_particular_to_postgresql_is_listed(postgres: Postgres) -> None:
    assert set(section("postgresql", "The URL")) == postgres_connection.OPTIONS
    assert section("postgresql", "By trigger") == list(inspect.signature(trigger_sql).parameters)
    async with Backstay(postgres.url(schema="reference")) as app:
        own = [finding.check for finding in await app.store.diagnose(app.clock.now())]
        connection = await asyncpg.connect(postgres.url())
        parameters = await connection.fetchval(
            "SELECT proargnames FROM pg_proc WHERE oid = 'reference.submit'::regproc"
        )
        await connection.close()
    assert section("postgresql", "The check-up") == own
    assert section("postgresql", "From SQL") == parameters


def test_every_field_of_the_record_is_listed() -> None:
    assert [name for name in rows("job-record") if name in job.FIELDS] == job.FIELDS
    extra = set(rows("job-record")) - set(job.FIELDS)
    assert all(hasattr(job.Job, name) for name in extra)


def test_everything_of_the_context_is_listed() -> None:
    public = {name for name in dir(context.Context) if not name.startswith("_")}
    assert {name.partition("(")[0].removeprefix("ctx.") for name in rows("context")} == public


def test_every_setting_is_listed() -> None:
    sources = [Path(settings.__file__), *Path(settings.__file__).parent.rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    read = {f"BACKSTAY_{name.upper()}" for name in re.findall(r'\bsetting\("(\w+)"', code)}
    logs = Path(daemon.__file__).read_text(encoding="utf-8")
    read |= {f"BACKSTAY_{name.upper()}" for name in re.findall(r'\b_one_of\("(\w+)"', logs)}
    read |= set(re.findall(r'"(BACKSTAY_[A-Z_]+)"', code)) - NOT_FOR_USERS
    read |= {f"BACKSTAY_RETENTION_{name.upper()}" for name in Retention.__struct_fields__}
    assert set(rows("settings")) == read


def test_every_command_is_listed() -> None:
    assert {name.split()[0] for name in rows("command-line") if not name.startswith("-")} == set(COMMANDS)


def test_every_option_of_a_command_is_listed() -> None:
    """Each command has a heading; under it stand its options and its verbs, all of them and no others."""
    everywhere = {"--url", "--app", "--json", "--help"}
    for name, command in COMMANDS.items():
        verbs = dict(getattr(command, "commands", {}))
        options = {option for each in (command, *verbs.values()) for option in _options(each)}
        under = "".join(
            re.findall(rf"^## `{name}\b[^\n]*\n.*?(?=^## |\Z)", page("command-line"), re.MULTILINE | re.DOTALL)
        )
        assert under, f"{name} has no heading"
        assert set(re.findall(r"`(--[a-z-]+)", under)) - everywhere == options - everywhere, name
        assert [verb for verb in verbs if f"{name} {verb}" not in under] == [], name


def _options(command: Any) -> set[str]:
    return {option for each in command.params for option in each.opts if option.startswith("--")}


def test_every_exit_code_is_listed() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page("command-line"), flags=re.MULTILINE))
    assert listed == {str(code.value): meaning for code, meaning in output.MEANINGS.items()}
