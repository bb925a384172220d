"""Without the modules and functions that only POSIX systems have, jobs on SQLite run all the same.

This is no Windows: paths, file locks and event loops are those of this system. It shows that nothing is imported or
called that is not there.
"""

import re
import subprocess
import sys
from pathlib import Path

from backstay import posix

SOURCE = Path(posix.__file__).parent

# What is taken away after the standard library, which has its own ways around it, was imported.
PROGRAM = """
import asyncio, concurrent.futures, importlib, logging, multiprocessing.connection, os, random, select, signal, socket
import ssl, subprocess, sys, tempfile, threading, uuid, webbrowser

BLOCKED = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses", "crypt", "nis"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
for name in BLOCKED:
    sys.modules.pop(name, None)

GONE = {
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid killpg setpgid getpgid setsid waitid wait3 wait4"
        " sysconf posix_fallocate posix_spawn pread pwrite fchmod fchown chown getloadavg mkfifo mknod"
        " uname nice O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK WNOHANG P_PID sync openpty"
        " initgroups setuid setgid getpriority chroot lockf sendfile",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGSTOP SIGCONT SIGALRM SIGQUIT pthread_sigmask pthread_kill"
        " setitimer getitimer pause sigwait sigpending ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF SIGRTMIN SIG_BLOCK",
    select: "poll epoll",
    socket: "AF_UNIX",
}
pair, unix = socket.socketpair, socket.AF_UNIX  # of event loops, which have one of another kind elsewhere
socket.socketpair = lambda family=None, kind=socket.SOCK_STREAM, proto=0: pair(unix, kind, proto)
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

def refuse(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = refuse

import pkgutil
import backstay
{body}
"""

RUNS = """
from backstay import Backstay, BlockingContext, ConfigurationError, Context, sync
from backstay.testing import drain, inline

app = Backstay("sqlite:///jobs.db")

@app.lifespan
def model():
    yield "model"

@app.job("in_a_coroutine")
async def in_a_coroutine(payload: int, ctx: Context) -> str:
    await ctx.progress(0.5)
    await ctx.artifact("lines.txt", "one\\ntwo\\n")
    async with ctx.transaction() as tx:
        tx.execute("INSERT INTO seen VALUES (?)", [payload])
    return ctx.state

@app.job("in_a_thread")
def in_a_thread(payload: int, ctx: BlockingContext) -> str:
    ctx.log.info("a line")
    return ctx.once("step", lambda: ctx.state)

@app.job("in_a_process", isolation="process")
def in_a_process(payload: int) -> None: ...

async def main():
    async with app:
        import apsw
        connection = apsw.Connection("jobs.db")
        connection.execute("CREATE TABLE seen (number INTEGER)")
        async with app.worker(job_types=["in_a_coroutine", "in_a_thread"]):
            for handler in (in_a_coroutine, in_a_thread):
                job = await handler.submit(5)
                print(await job.result(timeout=60))
            assert await app.artifact((await app.find())[-1].job_id, "lines.txt") == b"one\\ntwo\\n"
        assert connection.execute("SELECT * FROM seen").fetchall() == [(5,)]
        connection.close()
        try:
            app.worker()
        except ConfigurationError as error:
            print(error)
asyncio.run(main())

with app.sync:
    print(app.sync.find()[0].status)
"""

COMMANDS = """
from backstay.cli.main import main
open("jobs.py", "w").write('''
from backstay import Backstay
app = Backstay("sqlite:///jobs.db")
@app.job("work")
async def work(payload: int) -> int:
    return payload
''')
def run(*arguments):
    sys.argv = ["backstay", "--app", "jobs:app", *arguments]
    try:
        return main() or 0
    except SystemExit as error:
        return error.code
assert run("submit", "work", "5") == 0
assert run("worker", "--burst") == 0
assert run("list") == 0
assert run("worker", "--processes", "2") == 2
assert run("worker", "--reload") == 2
"""

IMPORTS = """
# Those that are loaded only for what POSIX alone has; `mcp` looks at the name of the system, which is still POSIX here.
apart = {"backstay.worker.process_child", "backstay.worker.leftovers", "backstay.__main__", "backstay.agents"}
for each in pkgutil.walk_packages(backstay.__path__, "backstay."):
    if each.name not in apart and not each.name.startswith("backstay.testing.conformance"):
        importlib.import_module(each.name)
"""


def run(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("{body}", body)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_coroutines_and_threads_run_on_sqlite_and_processes_are_refused_in_a_sentence(tmp_path: Path) -> None:
    lines = run(RUNS, tmp_path).stdout.splitlines()
    assert lines[:2] == ["model", "model"]
    assert 'in_a_process: isolation="process" needs Linux or another POSIX system' in lines[2]
    assert lines[3] == "completed"


def test_the_commands_work_and_those_that_cannot_say_so(tmp_path: Path) -> None:
    done = run(COMMANDS, tmp_path)
    assert "completed" in done.stdout
    assert done.stderr.count("a parent of workers needs Linux or another POSIX system") == 2


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    run(IMPORTS, tmp_path)


def test_what_only_posix_has_is_asked_for_in_one_place() -> None:
    """Besides modules that run only there."""
    apart = {"posix.py", "worker/keeper.py", "worker/process_child.py", "worker/leftovers.py", "testing/crash_child.py"}
    word = re.compile(r"^\s*import (fcntl|resource|pwd|grp|termios)\b|register_at_fork|pthread_sigmask", re.MULTILINE)
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if word.search(path.read_text(encoding="utf-8"))
    }
    assert found <= apart
