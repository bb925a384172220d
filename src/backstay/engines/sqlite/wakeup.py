"""Wakes listeners after a commit: those of this process, and other processes on the same SQLite file.

Other processes are woken over datagram sockets in a folder next to the file. A socket's name says which signals its
owner wants: rd-4711-1f3c.sock wants `ready` and `due`. A committing process sends one byte per signal to those who want
it, after COMMIT, so that the woken process finds what it was woken for. Nothing depends on delivery: polling finds the
same jobs later.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from backstay.core.port import Listener
from backstay.core.records import Signal
from backstay.engines.sqlite.writer import Folder
from backstay.errors import NotOpen

_LETTERS = {
    Signal.READY: "r",
    Signal.DUE: "d",
    Signal.PLANNED: "p",
    Signal.STOPPED: "s",
    Signal.ENDED: "e",
    Signal.OUTPUT: "o",
    Signal.UNFINISHED: "u",
}
_SIGNALS = {letter: signal for signal, letter in _LETTERS.items()}
_ADDRESS_MAX = 100  # sun_path holds 108 bytes


def _letters(signals: Iterable[Signal]) -> str:
    return "".join(sorted(_LETTERS[signal] for signal in signals))


def _wanted_by(name: str) -> frozenset[Signal]:
    """Return what the owner of a socket wants, as its name says; nothing if it is not a socket of ours."""
    letters = name.partition("-")[0] if name.endswith(".sock") else ""
    return frozenset(_SIGNALS[letter] for letter in letters if letter in _SIGNALS)


class Bell:
    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(database.name + ".bell")
        self.available = hasattr(socket, "AF_UNIX")
        self._folder_descriptor: int | None = None
        self._sender: socket.socket | None = None
        self._own: dict[str, Callable[[], None]] = {}  # sockets of ours that are open, and how each is closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = Folder(str(self.folder))
        self._sockets: list[tuple[str, frozenset[Signal]]] = []  # in it, and what each wants
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._wanted: frozenset[Signal] = frozenset()  # by any of them

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._folder_descriptor = os.open(self.folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        except (OSError, AttributeError):
            self.available = False

    def fall_silent(self) -> None:
        """Stop calling listeners. Runs on the event loop, before `close`; listeners may unsubscribe later."""
        for stop in list(self._own.values()):
            stop()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if self._folder_descriptor is not None:
            os.close(self._folder_descriptor)
        self._sender = self._folder_descriptor = None

    def ring(self, signals: set[Signal]) -> None:
        """Called by the writer thread after a commit."""
        self._ring_others(signals)
        # Only if there is one who wants them: to wake the loop takes a call of the system, and a turn of it.
        if self._loop is not None and not self._wanted.isdisjoint(signals):
            self._loop.call_soon_threadsafe(self._wake, signals)

    def _wake(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

    def _ring_others(self, signals: set[Signal]) -> None:
        if self._sender is None:
            return
        for name, wanted in self._look():
            if (heard := wanted & signals) and name not in self._own:
                self._send(self._sender, name, _letters(heard).encode())

    def _look(self) -> list[tuple[str, frozenset[Signal]]]:
        """Return the sockets in the folder. Listing it costs a single submit as much as its checks, so it is listed
        again only when its time has changed, or may have stayed the same though its content has changed."""
        try:
            sight = self._watched.look()
            if not self._watched.is_known(sight):
                names = os.listdir(self._watched.path)
                self._sockets = [(name, wanted) for name in names if (wanted := _wanted_by(name))]
                self._watched.found(sight)
        except OSError:
            return []
        return self._sockets

    def _send(self, sender: socket.socket, name: str, message: bytes) -> None:
        try:
            sender.sendto(message, self._address(name))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):  # its owner died
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / name)

    def _address(self, name: str) -> str:
        direct = str(self.folder / name)
        if len(os.fsencode(direct)) <= _ADDRESS_MAX:
            return direct
        return f"/proc/self/fd/{self._folder_descriptor}/{name}"

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        if self._loop is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        entry = (signals, listener)
        self._listeners.append(entry)
        self._wanted |= signals
        close = self._open_socket(signals, listener, self._loop)

        def stop() -> None:
            self._listeners.remove(entry)
            self._wanted = frozenset().union(*(wanted for wanted, _ in self._listeners))
            close()

        return stop

    def _open_socket(
        self, signals: frozenset[Signal], wake: Listener, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], None]:
        if not self.available:
            return lambda: None
        name = f"{_letters(signals)}-{os.getpid()}-{secrets.token_hex(4)}.sock"
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ear.setblocking(False)
        try:
            ear.bind(self._address(name))
            os.chmod(self.folder / name, 0o600)
        except OSError:
            ear.close()
            return lambda: None

        def heard() -> None:
            rung: set[str] = set()
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while True:
                    rung.update(ear.recv(16).decode("ascii", "replace"))
            for letter in rung:
                if (signal := _SIGNALS.get(letter)) is not None:
                    wake(signal)

        def stop() -> None:
            if self._own.pop(name, None) is None:
                return
            if not loop.is_closed():
                loop.remove_reader(ear)
            ear.close()
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)

        loop.add_reader(ear, heard)
        self._own[name] = stop
        return stop
