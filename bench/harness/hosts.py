"""Hosts on one machine: network namespaces that reach the server's by a link, and shares of the processors.

The run moves into a namespace of its own, where the server listens. Each host is another namespace, joined to it by a
pair of virtual interfaces and to nothing else, so that no address in here can clash with one outside. Namespaces have
no names: they last as long as a process in them, and not even a killed run leaves one behind. A share is a control
group: its processes together get so much of a core, and their CPU time is counted, including that of processes which
have ended. Both need root; control groups may be of version 1 or 2.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench.harness.processes import tree

CLONE_NEWNET = 0x40000000
NETWORK = "10.83"  # a /30 for each link
GROUPS = Path("/sys/fs/cgroup")
PREFIX = "backstay-bench-"
PERIOD_MICROS = 10_000  # short: a share of a core is to look like a slower core, not like one that stops and starts


class Refused(Exception):
    """This machine cannot play several hosts."""


class Host:
    """A network namespace with a link to ours."""

    def __init__(self, number: int) -> None:
        self.server_address = f"{NETWORK}.{number}.1"  # as it is seen from here
        own, link = f"{NETWORK}.{number}.2", f"host{number}"
        # It says that it is inside, and then lasts until its input ends: at the latest when this process does.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        _ip("address", "add", f"{self.server_address}/30", "dev", link)
        _ip("link", "set", link, "up")
        subprocess.run(self.command("ip", "address", "add", f"{own}/30", "dev", "eth0"), check=True)
        subprocess.run(self.command("ip", "link", "set", "eth0", "up"), check=True)

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a command on this host."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *command]

    def close(self) -> None:
        self._holder.communicate()


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Move this process into a network namespace of its own, and make so many hosts that reach it."""
    if os.geteuid() != 0:
        raise Refused("hosts are network namespaces: run it as root")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise Refused(f"no namespace for the network: {os.strerror(ctypes.get_errno())}")
    _ip("link", "set", "lo", "up")
    with ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            made.append(Host(number))
            stack.callback(made[-1].close)
        yield made


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True)
    except FileNotFoundError:
        raise Refused("there is no command ip: install the package iproute2") from None


class Share:
    """What some processes get of the processors together, and what they have used."""

    def __init__(self, name: str) -> None:
        self._unified = (GROUPS / "cgroup.controllers").exists()
        if self._unified:
            (GROUPS / "cgroup.subtree_control").write_text("+cpu")
        controllers = [""] if self._unified else ["cpu", "cpuacct"]
        self._folders = [GROUPS / each / f"{PREFIX}{os.getpid()}-{name}" for each in controllers]
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        weight = ("cpu.weight", "10000") if self._unified else ("cpu.shares", "262144")
        (self._folders[0] / weight[0]).write_text(weight[1])  # the most there is: others must not take a part of it

    def admit(self, pids: Iterable[int]) -> None:
        """Take in these processes; what they start from now on is in it as well."""
        for folder in self._folders:
            for pid in pids:
                with suppress(ProcessLookupError):
                    (folder / "cgroup.procs").write_text(str(pid))

    def admit_tree(self, root: int) -> None:
        self.admit(tree(root))

    def dismiss(self, pids: Iterable[int]) -> None:
        """Let these processes go back to where others are: they are neither limited nor counted."""
        for folder in self._folders:
            for pid in pids:
                (folder.parent / "cgroup.procs").write_text(str(pid))

    def limit(self, cores: float | None) -> None:
        quota = None if cores is None else round(cores * PERIOD_MICROS)
        if self._unified:
            (self._folders[0] / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_MICROS}")
        else:
            (self._folders[0] / "cpu.cfs_period_us").write_text(str(PERIOD_MICROS))
            (self._folders[0] / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    @property
    def used_seconds(self) -> float:
        """Return the CPU time of all processes that are or were in it."""
        if self._unified:
            return self._stat("usage_usec") / 1e6
        return int((self._folders[1] / "cpuacct.usage").read_text()) / 1e9

    @property
    def waited_periods(self) -> tuple[int, int]:
        """Return in how many periods its processes wanted more than their share, and how many periods there were."""
        return self._stat("nr_throttled"), self._stat("nr_periods")

    def _stat(self, name: str) -> int:
        lines = (self._folders[0] / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def close(self) -> None:
        """Remove it; processes that are left in it go back to where others are."""
        for folder in self._folders:
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (folder.parent / "cgroup.procs").write_text(pid)
            folder.rmdir()


@contextmanager
def shares(names: Sequence[str]) -> Iterator[list[Share]]:
    _remove_left()
    with ExitStack() as stack:
        made = []
        for name in names:
            made.append(Share(name))
            stack.callback(made[-1].close)
        yield made


def _remove_left() -> None:
    """Remove the groups of runs that were killed; one that has processes stays."""
    for folder in [*GROUPS.glob(f"{PREFIX}*"), *GROUPS.glob(f"*/{PREFIX}*")]:
        with suppress(OSError):
            folder.rmdir()
