"""The crash test: does a handler leave the same behind, whatever happens to its worker?

A handler runs at least once. `crash_test` runs it undisturbed, in a child process on a queue of its own, and keeps
what it left outside (`effect()`). Then it runs it again and again, each time with one disturbance, and compares.

    killed     the first child dies at a named point; a second one finishes the job
    stalled    the first child is stopped past its lease; a second one finishes the job; the first goes on to its end

`trials.py` decides which disturbances there are, and judges. `children.py` is the parent's side of a child: fork, hear,
stop, kill, reap. `child.py` is what runs in it. `report.py` is what is said about it all.

Children are forked, not started anew: a handler that a test defines inside itself exists only in this process. The
parent opens no store of the queue, so that no connection is carried over a fork. Every child is the head of a process
group, which is killed as a whole: the processes of isolation="process", and what a handler starts, go with it.
"""

from holdfast.testing.crashing.report import CrashReport, Trial
from holdfast.testing.crashing.trials import crash_test

__all__ = ["CrashReport", "Trial", "crash_test"]
