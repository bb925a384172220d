"""`python -m analysis [--folder F]` runs the demonstration; `python -m analysis serve` runs the service alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="analysis", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("backstay-analysis"), help="for songs, queue and results")
    parser.add_argument("--songs", type=int, default=4, choices=range(1, 5), help="how many of the sample songs")
    commands = parser.add_subparsers(dest="command")
    serving = commands.add_parser("serve", help="run the service until it is told to stop")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=0, help="0: a free one")
    given = parser.parse_args()
    if given.command == "serve":  # imported here: a child process of the service imports this file, and needs neither
        from analysis.server import serve
        from backstay import BackstayError

        try:
            serve(given.host, given.port)
        except (BackstayError, OSError, OverflowError) as error:  # settings, the folder, the port
            print(f"analysis: {error}", file=sys.stderr)
            return 1
        return 0
    from analysis.demo import main as demo

    return demo(given.folder.absolute(), given.songs)


if __name__ == "__main__":
    sys.exit(main())
