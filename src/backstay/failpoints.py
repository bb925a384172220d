"""Named places where a test can make this process die, stop, raise or wait. Nearly free when switched off.

Switched on by BACKSTAY_FAILPOINTS="claim.committed=kill9@3,apply.uncommitted=stop": the third time `claim.committed` is
reached the process kills itself. Actions: kill9, stop (SIGSTOP), raise, sleep:<seconds>.
"""

from __future__ import annotations

import os
import signal
import time


class FailpointReached(RuntimeError):
    """Raised by the action `raise`."""


class _Failpoint:
    def __init__(self, action: str, nth: int) -> None:
        self.action = action
        self.countdown = nth

    def hit(self, name: str) -> None:
        self.countdown -= 1
        if self.countdown != 0:
            return
        action, _, argument = self.action.partition(":")
        match action:
            case "kill9":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal is on its way; nothing after this line may happen
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise FailpointReached(name)
            case "sleep":
                time.sleep(float(argument))
            case _:
                raise ValueError(f"unknown failpoint action {self.action!r}")


def _parse(setting: str) -> dict[str, _Failpoint]:
    points = {}
    for part in filter(None, setting.split(",")):
        name, _, what = part.partition("=")
        action, _, nth = what.partition("@")
        points[name.strip()] = _Failpoint(action, int(nth or 1))
    return points


_points = _parse(os.environ.get("BACKSTAY_FAILPOINTS", ""))
armed = bool(_points)  # hot paths look at this first, so that a failpoint costs them no call


def hit(name: str) -> None:
    if _points and (point := _points.get(name)) is not None:
        point.hit(name)


def hit_moment(verb: str, moment: str) -> None:
    """Reach `insert.committed`, `claim.uncommitted`, …: a place that every verb passes."""
    if _points:
        hit(f"{verb}.{moment}")


def switch(setting: str) -> None:
    """Replace all failpoints, from inside a test."""
    global _points, armed
    _points = _parse(setting)
    armed = bool(_points)
