"""Sends summaries to Slack by an incoming webhook, set in COMPANION_SLACK_WEBHOOK_URL.

A webhook posts to one channel, and Slack does not recognise a repeated message: `ctx.once` in jobs.py keeps a recorded
send from being repeated, so that only a worker that dies between Slack's response and its record sends again. Every
attempt sends the same token, as the `block_id` of the message: readers do not see it, and a program that reads the
channel through Slack's API can tell a repeat from a second summary.
"""

from datetime import UTC, datetime
from typing import Any

from companion import chat, settings
from companion.chat import Message, Receipt

SECTION_LENGTH_MAX = 3_000  # what Slack takes in one section …
SECTIONS_MAX = 50  # … and how many of them in one message
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})  # Slack reads these three as markup


async def send(message: Message) -> Receipt:
    url = settings.slack_webhook_url()
    assert url is not None
    answer = await chat.call(url, body(message))
    if answer.strip() != b"ok":
        raise ConnectionError(f"Slack answered {answer[:100]!r} instead of ok")
    return Receipt(received_at=datetime.now(UTC), repeated=False)


def body(message: Message) -> dict[str, Any]:
    """Return the request for a message: the same for every attempt."""
    text = message.text.translate(_ESCAPED)
    sections = _cut(text)[:SECTIONS_MAX]
    return {
        "text": text[:SECTION_LENGTH_MAX],  # for notifications
        "blocks": [
            {
                "type": "section",
                "block_id": message.token if place == 0 else f"{message.token}.{place}",
                "text": {"type": "mrkdwn", "text": section},
            }
            for place, section in enumerate(sections)
        ],
    }


def _cut(text: str) -> list[str]:
    """Cut a text into sections, at the ends of lines where possible."""
    sections: list[str] = []
    while len(text) > SECTION_LENGTH_MAX:
        end = text.rfind("\n", 1, SECTION_LENGTH_MAX) + 1 or SECTION_LENGTH_MAX
        sections.append(text[:end])
        text = text[end:]
    return [*sections, text]
