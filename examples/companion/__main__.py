"""`python -m companion`: runs the demonstration; `set-up`, `sync` and `receiver` are for real use."""

import argparse
import asyncio
import sys
import threading
from datetime import UTC, datetime

from backstay import BackstayError
from companion import demo, jobs, sample
from companion.chat import Message
from companion.receiver import Receiver


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m companion", description="Daily summaries on a durable queue.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    shown = commands.add_parser("demo", help="catch up on three days, with a kill in the middle (the default)")
    shown.add_argument("--picture", metavar="SVG", help="also write what it prints to this file")
    commands.add_parser("set-up", help="store the schedule that looks for users every hour; once per deployment")
    syncing = commands.add_parser("sync", help="look at these users now, or at all")
    syncing.add_argument("user_id", nargs="*")
    serving = commands.add_parser("receiver", help="a chat service in small, with seven users, until it is stopped")
    serving.add_argument("--port", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        match given.command:
            case "set-up":
                asyncio.run(_set_up())
            case "sync":
                asyncio.run(_sync(given.user_id))
            case "receiver":
                _receive(given.port)
            case _:
                return demo.run(getattr(given, "picture", None))
    except (BackstayError, ValueError, OSError, OverflowError) as error:  # the queue, an id, a port
        print(f"companion: {error}", file=sys.stderr)
        return 1
    return 0


async def _set_up() -> None:
    async with jobs.app:
        await jobs.set_up()
    print("The schedule sync-users is stored: a worker looks for users every hour, or now after “sync”.")


async def _sync(user_ids: list[str]) -> None:
    async with jobs.app:
        if user_ids:
            await jobs.sync(user_ids)
        else:
            await jobs.app.submit("sync_users", None)
    print(f"Submitted for {', '.join(user_ids) or 'all users'}: a worker does it next.")


def _receive(port: int) -> None:
    with Receiver(port) as receiver:
        now = datetime.now(UTC)
        for user in sample.users(now, demo.PAST_DAYS):
            receiver.add(user, sample.written(user, now))
        receiver.on_kept = _show
        print(f"COMPANION_CHAT_URL={receiver.url}", flush=True)
        threading.Event().wait()


def _show(message: Message) -> None:
    print(f"{message.user_id}: {message.text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
