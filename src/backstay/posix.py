"""What POSIX systems have and others, such as Windows, do not: in one place, so that the rest runs without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection

# Handlers in processes of their own, and a parent of several workers: these pass pipes to children, fork them, and kill
# whole groups.
HAS_PROCESSES = hasattr(os, "fork") and hasattr(signal, "pthread_sigmask")
ONLY_HERE = "needs Linux or another POSIX system"
BINARY = getattr(os, "O_BINARY", 0)  # of os.open: elsewhere a line would end in two characters
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def at_fork(
    *,
    after_in_child: Callable[[], object],
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
) -> None:
    """Call these around each fork of this process, where there are forks."""
    if hasattr(os, "register_at_fork"):
        given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{name: call for name, call in given.items() if call is not None})


def block_signals(numbers: Collection[signal.Signals]) -> set[int]:
    """Hold these signals back from this thread; return what was held back before."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))


def restore_signals(mask: Collection[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def open_files_limit() -> int | None:
    """Return how many files and connections this process may have open; None if there is no such limit."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_open_files(wanted: int) -> None:
    """Raise that limit, as far as the system allows."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
