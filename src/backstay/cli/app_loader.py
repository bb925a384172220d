"""Which app a command works with (--app, or a plain one on a URL), and which job a partial id means."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from backstay import ids, settings
from backstay.app import Backstay
from backstay.cli import output
from backstay.cli.output import Column
from backstay.clock import to_datetime
from backstay.core import records
from backstay.errors import BackstayError, ConfigurationError, InvalidOption, JobNotFound
from backstay.ops import lookup
from backstay.options import FindOptions

T = TypeVar("T")
_OURS = str(Path(__file__).parents[1]) + os.sep


def load(url: str | None, name: str | None) -> Backstay:
    """Return the named app, on the given URL."""
    if url is not None:
        os.environ["BACKSTAY_URL"] = url  # for a Backstay() in the user's module, and in the processes it starts
    name = settings.setting("app", name, str, "")
    if not name:
        return Backstay(url)
    app = _find(name)
    if url is not None:
        app.url = Backstay(url).url
    return app


def run(url: str | None, name: str | None, work: Callable[[Backstay], Awaitable[T]], *, makes: bool = False) -> T:
    """Open the app and run the command. Only a command with `makes` may create a queue."""
    app = load(url, name)
    if not makes:
        _check_exists(app.url)

    async def opened() -> T:
        if not makes and not await app.exists():
            raise ConfigurationError(
                f'no queue at {app.location}: choose another with --url, or create this one with "backstay migrate"'
            )
        async with app:
            return await work(app)

    return asyncio.run(opened())


def sqlite_path(url: str) -> Path | None:
    """Return the file behind a URL, if it is a SQLite URL."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def _check_exists(url: str) -> None:
    """Refuse a file that does not exist: a mistyped path must not answer "no jobs" from a new, empty file."""
    path = sqlite_path(url)
    if path is None or path.exists():
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"no queue at {url}: the folder {folder} does not exist; name another with --url, or create it with"
            f' "mkdir -p {folder}"'
        )
    raise ConfigurationError(
        f'no queue at {url} (in {os.getcwd()}): choose another with --url, or create this one with "backstay migrate"'
    )


def _find(name: str) -> Backstay:
    module_name, _, attribute = name.rpartition(":") if ":" in name else (name, "", "app")
    if not module_name or not attribute:
        raise ConfigurationError(f"--app {name}: write module:app, for example --app myproject.jobs:app")
    module = _import(name, module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"--app {name}: {module_name} has no {part!r}{_hint(module)}")
        found = getattr(found, part)
    if not _is_app(found) and callable(found) and not hasattr(found, "handler"):  # which is called for something else
        return _made(name, f"{module.__name__}:{attribute}", found)
    return _async_app(name, found)


def _is_app(found: Any) -> bool:
    return isinstance(getattr(found, "inner", found), Backstay)


def _made(name: str, factory: str, function: Any) -> Backstay:
    """Return the app that a function makes. Processes of handlers call it again: their handlers are inside it."""
    from backstay.worker import factories  # here: few workers need it

    try:
        found = factories.called(function)
    except (Exception, SystemExit) as error:
        raise _broken(name, error, "raised") from error
    if not _is_app(found):
        raise ConfigurationError(
            f"--app {name}: it returned a {type(found).__name__}, not a Backstay: return the object created with"
            " Backstay(…)"
        )
    app = _async_app(name, found)
    for handler in app.handlers.values():
        handler.factory = factory
    return app


def _async_app(name: str, found: Any) -> Backstay:
    if isinstance(found, Backstay):
        return found
    inner = getattr(found, "inner", None)  # backstay.sync.Backstay
    if isinstance(inner, Backstay):
        return inner
    raise ConfigurationError(
        f"--app {name}: this is a {type(found).__name__}, not a Backstay: use the object created with Backstay(…)"
    )


def _import(name: str, module_name: str) -> Any:
    _put_first(os.getcwd())
    if module_name.endswith(".py") or os.sep in module_name:
        module_name = _module_of_file(name, Path(module_name).absolute())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise ConfigurationError(
                f"--app {name}: there is no module {missing!r} in {os.getcwd()} or on the Python path"
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _module_of_file(name: str, file: Path) -> str:
    """Return the name by which a file can be imported: the child process of a handler imports it again by that name."""
    if not file.is_file():
        raise ConfigurationError(f"--app {name}: there is no file {file}")
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _put_first(str(folder))
    return ".".join(parts)


def _put_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _broken(name: str, error: BaseException, what: str = "cannot be imported:") -> ConfigurationError:
    """Return one line that says where the user's module failed."""
    ours = isinstance(error, BackstayError)  # it says itself what is wrong; where the user's code asked for that helps
    trace = error.__traceback__
    where = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        passed = file.startswith("<frozen") or file == __file__ or os.sep + "importlib" + os.sep in file
        if not passed and not (ours and file.startswith(_OURS)):
            where = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if ours:
        return ConfigurationError(f"{error}{where}")
    return ConfigurationError(f"--app {name} {what} {type(error).__name__}: {error}{where}")


def _hint(module: Any) -> str:
    apps = [each for each, value in vars(module).items() if _is_app(value)]
    return f"; it has {', '.join(apps)}" if apps else "; it creates no Backstay at module level"


def show(
    read: Callable[[Backstay], Awaitable[list[T]]],
    columns: Callable[[datetime], list[Column[T]]],
    none: str,
    *,
    as_json: bool,
    url: str | None,
    app: str | None,
) -> None:
    """Print rows; if there are none, print `none`, which says how to get one."""

    async def work(app: Backstay) -> tuple[list[T], datetime]:
        return await read(app), to_datetime(app.clock.now())

    rows, now = run(url, app, work)
    if as_json:
        output.emit_json({"items": rows})
    elif rows:
        output.emit_table(columns(now), rows)
    else:
        output.say(none)


_NAMED = 5  # jobs that an error lists


async def job_id(app: Backstay, given: str) -> str:
    """Return the whole id. Raises JobNotFound if no job matches, InvalidOption if several do."""
    part = lookup.part_of(given)
    if part is None:
        return _whole(given)

    async def find(options: FindOptions) -> records.Page:
        page = await app.find(**options)
        return records.Page(tuple(job.row for job in page), page.next)

    found = await lookup.matches(find, part)
    if len(found) == 1:
        return found[0].job_id
    if found:
        listed = ", ".join(f"{job.job_id} ({job.job_type}, {job.status.value})" for job in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise InvalidOption(f"{given!r:.40} matches {len(found)} jobs: {listed}{more}; give more of the id")
    raise JobNotFound(
        f"no recent job has an id that starts or ends with {given!r:.40}: give the full id, as"
        ' "backstay list --json" prints it; archived jobs are found by their full id only'
    )


def _whole(given: str) -> str:
    try:
        return ids.canonical(given)
    except InvalidOption:
        raise InvalidOption(
            f"{given!r:.100} is not a job id: ids are UUIDs; {lookup.PART_MIN} or more of the first or last"
            " characters are enough"
        ) from None
