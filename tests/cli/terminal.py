"""A terminal to run a command on, and what a person would see there."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios


def on_a_terminal(columns: int, *arguments: str, typed: str = "", code: int = 0) -> list[str]:
    """The lines that the command printed, without colours."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    said = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # Linux says so when the last writer is gone
        pass
    os.close(ours)
    assert process.wait() == code, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).split("\r\n")
