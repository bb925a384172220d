"""Settings from environment variables; the queue's own settings are `BACKSTAY_…`."""

import math
import os

BASE_DELAY_SECONDS = 60.0
MAX_ATTEMPTS = 5
CLAIM_LIMIT = 25  # jobs per claim of a worker
CATCH_UP_DAYS = 7  # after a longer downtime, older summaries are of no use
CALL_SECONDS = 10.0  # timeout of one request to the chat service


def chat_url() -> str:
    """Return the URL of the chat service. Read when needed: each test starts its own."""
    url = os.environ.get("COMPANION_CHAT_URL")
    if not url:
        raise RuntimeError("COMPANION_CHAT_URL is not set: where is the chat service? (python -m companion receiver)")
    return url.rstrip("/")


def slack_webhook_url() -> str | None:
    """Return the webhook that summaries are sent to instead of the chat service. It is a secret, which no message
    quotes."""
    url = os.environ.get("COMPANION_SLACK_WEBHOOK_URL")
    if url and not url.startswith(("https://", "http://")):
        raise RuntimeError("COMPANION_SLACK_WEBHOOK_URL is not an https:// address")
    return url or None


def base_delay_seconds() -> float:
    return _positive("COMPANION_BASE_DELAY_SECONDS", BASE_DELAY_SECONDS)


def max_attempts() -> int:
    return int(_positive("COMPANION_MAX_ATTEMPTS", MAX_ATTEMPTS))


def claim_limit() -> int:
    """Return the queue's own setting, with our default."""
    return int(_positive("BACKSTAY_CLAIM_LIMIT", CLAIM_LIMIT))


def catch_up_days() -> int:
    return int(_positive("COMPANION_CATCH_UP_DAYS", CATCH_UP_DAYS))


def _positive(name: str, default: float) -> float:
    given = os.environ.get(name)
    if given is None:
        return default
    try:
        number = float(given)
    except ValueError:
        raise RuntimeError(f"{name}={given!r} is not a number") from None
    if not 0 < number < math.inf:
        raise RuntimeError(f"{name}={given!r}: it must be more than 0, and not without end")
    return number
