"""Companion's messages in Slack: an incoming webhook, played by a local server that checks what it gets."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from companion import jobs, slack
from companion.chat import Message

from backstay.testing import drain, throwaway_url
from tests.examples.companion_stage import Stage, on_stage

PATH = "/services/T000/B000/secret-of-the-webhook"


class Webhook:
    """Answers as Slack does: 200 and "ok", or 400 and what is wrong with the request."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.troubles: deque[tuple[int, str, dict[str, str]]] = deque()  # answers to the next posts, which are lost

    def answer(self, path: str, kind: str | None, raw: bytes) -> tuple[int, str, dict[str, str]]:
        if path != PATH:
            return 404, "no_service", {}
        if kind != "application/json":
            return 400, "invalid_payload", {}
        said = json.loads(raw)
        if not said.get("text") or len(said["blocks"]) > 50:
            return 400, "invalid_payload", {}
        ids = [block["block_id"] for block in said["blocks"]]
        for block in said["blocks"]:
            if block["type"] != "section" or not 0 < len(block["text"]["text"]) <= 3000 or len(block["block_id"]) > 255:
                return 400, "invalid_blocks", {}
        if len(set(ids)) < len(ids):
            return 400, "invalid_blocks", {}
        if self.troubles:
            return self.troubles.popleft()
        self.posts.append(said)
        return 200, "ok", {}


@contextmanager
def serving(webhook: Webhook) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            code, said, headers = webhook.answer(self.path, self.headers["Content-Type"], raw)
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(said))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PATH}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def webhook() -> Webhook:
    return Webhook()


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: Webhook) -> AsyncIterator[Stage]:
    async with on_stage(throwaway_url(tmp_path), monkeypatch) as stage:
        with serving(webhook) as url:
            monkeypatch.setenv("COMPANION_SLACK_WEBHOOK_URL", url)
            stage.knows("ada")
            yield stage


async def test_a_summary_goes_to_slack_once_with_its_token(stage: Stage, webhook: Webhook) -> None:
    stage.chat.written["ada"] = []
    await stage.sync()
    await drain(stage.app, until=timedelta(days=1))
    [job] = await stage.summaries()
    [post] = webhook.posts
    assert post["text"] == "Ada, you wrote nothing on Monday, 16 November."
    assert [block["block_id"] for block in post["blocks"]] == [job.result["token"]]
    assert job.result["token"] == jobs.token(jobs.SummaryOf.model_validate(job.payload))
    assert stage.chat.messages == {}, "the chat service gets none"


@pytest.mark.parametrize(
    ("trouble", "delay"),
    [((500, "rollup_error", {}), 60.0), ((429, "rate_limited", {"Retry-After": "30"}), 30.0)],
)
async def test_an_answer_that_is_no_success_sends_the_same_message_again(
    stage: Stage, webhook: Webhook, trouble: tuple[int, str, dict[str, str]], delay: float
) -> None:
    webhook.troubles.append(trouble)
    await stage.submit()
    [job] = await drain(stage.app)
    assert (job.status, (job.scheduled_for - stage.clock.moment).total_seconds()) == ("retrying", delay)
    assert trouble[1] in str(job.last_error) and "secret" not in str(job.errors), "a webhook is a secret"
    await drain(stage.app, until=timedelta(minutes=2))
    [post] = webhook.posts
    assert post["blocks"][0]["block_id"] == jobs.token(jobs.SummaryOf.model_validate(job.payload))


async def test_a_webhook_that_is_gone_makes_a_dead_letter_at_once(stage: Stage, webhook: Webhook) -> None:
    webhook.troubles.append((410, "channel_is_archived", {}))
    await stage.submit()
    [job] = await drain(stage.app)
    assert (job.status, job.failures) == ("failed", 1) and "channel_is_archived" in str(job.last_error)


def test_every_attempt_sends_the_same_and_a_text_is_no_markup() -> None:
    message = Message(token="t", user_id="ada", text="<!channel> a & b\n" * 400)
    said = slack.body(message)
    assert said == slack.body(message.model_copy())
    assert said["text"].startswith("&lt;!channel&gt; a &amp; b")
    sections = [block["text"]["text"] for block in said["blocks"]]
    assert "".join(sections) == "&lt;!channel&gt; a &amp; b\n" * 400
    assert all(section.endswith("\n") and len(section) <= 3000 for section in sections)
    assert [block["block_id"] for block in said["blocks"]] == ["t", *(f"t.{n}" for n in range(1, len(sections)))]
