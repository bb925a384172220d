"""Opening an SQLite file: only where it is safe, with full durability, and never as a new empty queue."""

import asyncio
import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay.engines.sqlite import connection
from backstay.engines.sqlite.store import SQLiteStore
from backstay.errors import (
    BackstayError,
    ConfigurationError,
    ForkedStore,
    SchemaMismatch,
    StoreError,
    StoreGone,
    StoreUnavailable,
    StoreUnsafe,
)
from backstay.testing.clock import ManualClock
from backstay.testing.conformance.factories import NOW, new_job, request, submit
from backstay.testing.conformance.test_results import WORDS


async def open_and_close(path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{path}")
    await store.open()
    await store.close()


# Addresses


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/jobs.db", Path("/var/lib/jobs.db")),
        ("sqlite:///jobs.db", Path.cwd() / "jobs.db"),
        ("sqlite:///folder/with space/jobs.db", Path.cwd() / "folder/with space/jobs.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: Path) -> None:
    assert connection.path_of(url) == path


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://jobs.db",
        "sqlite:///:memory:",
        "sqlite:///jobs.db?mode=memory",
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        SQLiteStore(url)


async def test_the_location_of_a_store_opens_the_same_store(store: SQLiteStore) -> None:
    assert SQLiteStore(store.location).path == store.path


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        await open_and_close(tmp_path / "nowhere" / "jobs.db")


# Who may read it


@pytest.fixture
def open_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


def modes_in(folder: Path) -> dict[str, int]:
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}


async def test_only_the_owner_can_read_the_files_whatever_the_umask(open_umask: None, tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    await submit(store)
    await store.counts()

    modes = modes_in(tmp_path)
    await store.close()

    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm"} <= modes.keys()
    assert modes.pop("jobs.db.bell") == 0o700
    assert set(modes.values()) == {0o600}


# Where it may lie


def mounts(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    read = Path.read_text

    def read_text(self: Path, *arguments: Any, **options: Any) -> str:
        if str(self) == "/proc/self/mountinfo":
            return "\n".join(lines) + "\n"
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read_text)


def mount(path: Path | str, kind: str) -> str:
    return f"36 35 98:0 / {str(path).replace(' ', chr(92) + '040')} rw,noatime master:1 - {kind} server:/x rw"


ROOT = mount("/", "ext4")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
async def test_a_network_file_system_is_refused_and_nothing_is_created(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(monkeypatch, ROOT, mount(tmp_path, kind))

    with pytest.raises(StoreUnsafe, match="network file system"):
        await open_and_close(tmp_path / "jobs.db")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["with space", "éncoded ☃"])
async def test_a_network_file_system_is_recognised_by_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    mounts(monkeypatch, ROOT, mount(tmp_path / name, "nfs4"))

    with pytest.raises(StoreUnsafe):
        await open_and_close(tmp_path / name / "jobs.db")


async def test_a_network_file_system_is_recognised_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "jobs.db").symlink_to(far / "jobs.db")
    mounts(monkeypatch, ROOT, mount(far, "nfs4"))

    with pytest.raises(StoreUnsafe):
        await open_and_close(tmp_path / "jobs.db")


async def test_a_local_disk_below_a_network_file_system_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(monkeypatch, ROOT, mount(tmp_path, "ext4"), mount(tmp_path.parent, "nfs4"))

    await open_and_close(tmp_path / "jobs.db")


async def test_a_local_disk_beside_a_network_file_system_of_nearly_its_name_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk2").mkdir()
    mounts(monkeypatch, ROOT, mount(tmp_path / "disk", "nfs4"))

    await open_and_close(tmp_path / "disk2" / "jobs.db")


# What it may be


def a_database(path: Path, *statements: str) -> None:
    made = apsw.Connection(str(path))
    for statement in statements:
        made.execute(statement)
    made.close()


@pytest.mark.parametrize(
    "statements",
    [("CREATE TABLE theirs (x)",), ("PRAGMA application_id = 4711", "CREATE TABLE theirs (x)")],
    ids=["unmarked", "marked"],
)
async def test_a_database_of_another_program_is_refused_and_left_as_it_was(
    statements: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "theirs.db"
    a_database(path, *statements)
    before = path.read_bytes()

    for way_in in (open_and_close, _migrate, _erase):
        with pytest.raises(StoreUnsafe, match="another program"):
            await way_in(path)

    assert path.read_bytes() == before


async def _migrate(path: Path) -> None:
    await SQLiteStore(f"sqlite:///{path}").migrate()


async def _erase(path: Path) -> None:
    await SQLiteStore(f"sqlite:///{path}").erase()


@pytest.mark.parametrize("lines", [1, 100])
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"remember the milk\n" * lines)
    before = path.read_bytes()

    for way_in in (open_and_close, _migrate, _erase):
        with pytest.raises(StoreUnsafe, match="not an SQLite database"):
            await way_in(path)

    assert path.read_bytes() == before


async def test_a_table_that_is_not_ours_does_not_become_a_result_table(store: SQLiteStore) -> None:
    a_database(store.path, f"CREATE TABLE result_{WORDS.name} (theirs)")

    with pytest.raises(StoreUnsafe, match="another name"):
        await store.declare([WORDS])


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackstayError):
        await open_and_close(tmp_path)


async def test_a_newer_schema_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await open_and_close(path)
    a_database(path, "PRAGMA user_version = 99")

    with pytest.raises(SchemaMismatch, match="99"):
        await open_and_close(path)

    check = apsw.Connection(str(path))
    assert check.pragma("user_version") == 99
    check.close()


def test_an_sqlite_that_can_corrupt_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection.create(tmp_path / "jobs.db")
    monkeypatch.setattr(connection, "_version", lambda: (3, 51, 2))

    with pytest.raises(StoreUnsafe, match=r"3\.51\.3"):
        connection.connect(tmp_path / "jobs.db")


# Settings


async def test_every_connection_runs_with_full_durability(store: SQLiteStore) -> None:
    await submit(store)
    assert store._writer is not None

    def settings(c: apsw.Connection) -> list[object]:
        return [c.pragma(name) for name in ("synchronous", "journal_mode", "foreign_keys", "mmap_size")]

    assert settings(store._writer.connection) == [2, "wal", 1, 0]
    assert await store._read(settings) == [2, "wal", 1, 0]


@pytest.mark.parametrize(("setting", "value"), [("synchronous", 1), ("journal_mode", "delete")])
def test_a_setting_that_does_not_take_is_refused(
    setting: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf(apsw.Connection):
        def pragma(self, name: str, *arguments: Any, **options: Any) -> Any:
            return value if name == setting else super().pragma(name, *arguments, **options)

    monkeypatch.setattr(connection.apsw, "Connection", Deaf)
    connection.create(tmp_path / "jobs.db")

    with pytest.raises(StoreUnsafe):
        connection.connect(tmp_path / "jobs.db")


# Migrating

OPENS = """
import asyncio, sys
from backstay.testing.conformance.factories import new_job, NOW
from backstay.engines.sqlite import SQLiteStore

async def main():
    store = SQLiteStore(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.insert([new_job()], NOW)
    await store.close()

asyncio.run(main())
"""


def open_at_once(url: str, count: int) -> list[str]:
    """Processes that wait for one another, then open the store; what each had to complain about."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", OPENS, url], text=True, **pipes) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[1] for process in processes]


async def test_eight_processes_may_make_the_schema_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    complaints = open_at_once(url, 8)

    assert [each for each in complaints if each] == []
    store = SQLiteStore(url)
    await store.open()
    assert (await store.counts())["pending"] == 8
    await store.close()


@pytest.mark.parametrize("step", range(20))
def test_another_process_may_migrate_between_any_two_of_our_steps(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    connection.create(path)

    class Interrupted(apsw.Connection):
        steps = 0

        def _step(self) -> None:
            if self.steps == step:
                rival = connection_class(str(path))
                with contextlib.suppress(StoreError, apsw.BusyError):  # where we hold the lock, it has to wait
                    rival.pragma("journal_mode", "wal")
                    connection.migrate(rival, path)
                rival.close()
            self.steps += 1

        def execute(self, *arguments: Any, **options: Any) -> Any:
            self._step()
            return super().execute(*arguments, **options)

        def pragma(self, *arguments: Any, **options: Any) -> Any:
            self._step()
            return super().pragma(*arguments, **options)

    connection_class = apsw.Connection
    monkeypatch.setattr(connection.apsw, "Connection", Interrupted)
    ours = connection.connect(path)
    connection.migrate(ours, path)

    connection.check_schema(ours, path)
    ours.close()


def test_a_switch_to_wal_that_another_process_makes_at_the_same_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crowded(apsw.Connection):
        refusals = 3

        def pragma(self, name: str, *arguments: Any, **options: Any) -> Any:
            if name == "journal_mode" and self.refusals:
                self.refusals -= 1
                raise apsw.BusyError("database is locked")
            return super().pragma(name, *arguments, **options)

    monkeypatch.setattr(connection.apsw, "Connection", Crowded)
    connection.create(tmp_path / "jobs.db")

    opened = connection.connect(tmp_path / "jobs.db")

    assert opened.pragma("journal_mode") == "wal"
    opened.close()


async def test_migrating_twice_applies_nothing_twice(tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")

    first, second = await store.migrate(), await store.migrate()

    assert (first[0], second) == ("0001_core", [])


# A file that vanishes


def remove(store: SQLiteStore, *suffixes: str) -> None:
    for suffix in suffixes:
        Path(f"{store.path}{suffix}").unlink()


async def _write(store: SQLiteStore) -> object:
    return await submit(store)


async def _write_many(store: SQLiteStore) -> object:
    return await asyncio.gather(*(submit(store, concurrency_key=str(i)) for i in range(5)))


async def _read(store: SQLiteStore) -> object:
    return await store.counts()


Use = Callable[[SQLiteStore], Any]


@pytest.mark.parametrize("use", [_write, _write_many, _read])
async def test_a_file_that_vanished_is_an_error_and_never_a_new_queue(store: SQLiteStore, use: Use) -> None:
    await submit(store)
    remove(store, "", "-wal", "-shm")

    with pytest.raises(StoreGone):
        await use(store)

    assert not store.path.exists()


@pytest.mark.parametrize("use", [_write, _write_many, _read])
@pytest.mark.parametrize("suffixes", [("-wal",), ("-wal", "-shm")], ids="+".join)
async def test_a_log_that_was_removed_is_an_error_that_says_what_to_do(
    store: SQLiteStore, use: Use, suffixes: tuple[str, ...]
) -> None:
    await submit(store)
    remove(store, *suffixes)

    with pytest.raises(StoreGone, match=r"jobs\.db-wal was removed .*stop every process .*integrity_check"):
        await use(store)


@pytest.mark.parametrize("use", [_write, _write_many, _read])
@pytest.mark.parametrize("suffixes", [("", "-wal", "-shm"), ("-wal",)], ids="+".join)
async def test_what_vanishes_is_noticed_though_nothing_had_changed_for_long(
    store: SQLiteStore, use: Use, suffixes: tuple[str, ...]
) -> None:
    assert store._writer is not None
    folder = store._writer.identity.folder
    assert folder is not None
    clock = folder.clock = ManualClock()
    await submit(store)
    clock.advance(60)
    await submit(store)
    assert folder.is_known(folder.look())  # so that the next looks no further
    remove(store, *suffixes)

    with pytest.raises(StoreGone):
        await use(store)


async def test_a_queue_behind_a_link_is_watched_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("backstay.engines.sqlite.writer.SystemClock", lambda: clock)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    await open_and_close(elsewhere / "jobs.db")
    link = tmp_path / "link.db"
    link.symlink_to(elsewhere / "jobs.db")
    store = SQLiteStore(f"sqlite:///{link}")
    await store.open()
    await submit(store)
    clock.advance(60)
    await submit(store)
    (elsewhere / "jobs.db").unlink()

    with pytest.raises(StoreGone):
        await submit(store)
    await store.close()


async def test_processes_that_come_and_go_do_not_look_like_a_removed_log(store: SQLiteStore) -> None:
    for _ in range(3):
        other = SQLiteStore(f"sqlite:///{store.path}")
        await other.open()
        await submit(other)
        await other.close()
        await submit(store)

    assert sum((await store.counts()).values()) == 6


@pytest.fixture
def no_more_files() -> Iterator[Callable[[], None]]:
    """Take every file descriptor that this process may have."""
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take() -> None:
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, before[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    yield take
    for each in taken:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("exists", [True, False])
def test_too_few_file_descriptors_are_said_when_a_file_is_opened(
    tmp_path: Path, no_more_files: Callable[[], None], exists: bool
) -> None:
    path = tmp_path / "jobs.db"
    if exists:
        connection.create(path)
    no_more_files()

    with pytest.raises(StoreUnavailable, match=r"jobs\.db.*too many files .*limit is \d+.*ulimit -n"):
        connection.connect(path) if exists else connection.create(path)


@pytest.mark.parametrize("use", [_write, _write_many, _read])
async def test_a_file_that_was_replaced_is_an_error_and_is_not_touched(store: SQLiteStore, use: Use) -> None:
    await submit(store)
    other = store.path.with_name("other.db")
    await open_and_close(other)
    before = other.read_bytes()
    remove(store, "-wal", "-shm")
    other.rename(store.path)

    with pytest.raises(StoreGone):
        await use(store)

    assert store.path.read_bytes() == before


# Forking


def test_a_store_carried_over_a_fork_refuses_and_the_parent_is_unharmed(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    loop.run_until_complete(store.open())
    loop.run_until_complete(submit(store))

    child = os.fork()
    if child == 0:
        os._exit(_use_after_fork(store))
    _, code = os.waitpid(child, 0)

    job_id = loop.run_until_complete(submit(store))
    assert loop.run_until_complete(store.get([job_id])) != [None]
    loop.run_until_complete(store.close())
    loop.close()
    assert os.waitstatus_to_exitcode(code) == 0


def _use_after_fork(store: SQLiteStore) -> int:
    """In the child: how many uses were not refused."""
    uses: list[Callable[[], Any]] = [
        lambda: store.insert([new_job()], NOW),
        lambda: store.insert([new_job(dedup_key="k")], NOW),
        lambda: store.claim(request(), NOW),
        store.counts,
    ]
    wrong = 0
    for use in uses:
        try:
            asyncio.run(asyncio.wait_for(use(), 5))
        except ForkedStore:
            continue
        except BaseException:
            pass
        wrong += 1
    return wrong


def test_a_child_can_open_a_queue_though_its_parent_was_writing_when_it_forked(tmp_path: Path) -> None:
    stop = threading.Event()

    def keep_writing(name: str) -> None:
        async def run() -> None:
            store = SQLiteStore(f"sqlite:///{tmp_path}/{name}.db")
            await store.open()
            while not stop.is_set():
                await asyncio.gather(*[submit(store) for _ in range(50)], *[store.depths() for _ in range(10)])
            await store.close()

        asyncio.run(run())

    writers = [threading.Thread(target=keep_writing, args=(name,)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    hung = 0
    for number in range(30):
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends it where SQLite hangs
            connect_to_new(tmp_path / f"child-{number}.db")
            os._exit(0)
        hung += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    stop.set()
    for writer in writers:
        writer.join()
    assert hung == 0


def test_a_thread_that_never_used_a_queue_can_fork() -> None:
    """In a process of its own: where it cannot, it hangs."""
    program = (
        "import subprocess, threading, backstay.engines.sqlite\n"
        "fork = lambda: subprocess.run(['true'], preexec_fn=lambda: None, check=True)\n"
        "thread = threading.Thread(target=fork)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def connect_to_new(path: Path) -> None:
    connection.create(path)
    connection.migrate(connection.connect(path), path)
