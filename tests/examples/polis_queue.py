"""A queue with the analysis on it, a conversation to analyse, and a language model that names its topics."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from polis.app import analyse, register

from backstay import Backstay, Pipeline
from tests.examples.polis_conversation import two_groups

ALL = {"stages": [{"stage": "PCA"}, {"stage": "UMAP", "config": {"embedding_model": "wordllama"}}, {"stage": "REPORT"}]}


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of exports, with conversation 36324; no language model is configured."""
    two_groups(tmp_path / "exports" / "36324")
    monkeypatch.setenv("POLIS_EXPORTS", str(tmp_path / "exports"))
    for name in ("POLIS_LLM_URL", "POLIS_LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "exports"


def opened(url: str, artifacts: str | None = None) -> tuple[Backstay, Pipeline]:
    """In threads: that stages run in processes of their own is for the run from the command line to show."""
    app = Backstay(url, artifacts=artifacts)
    return app, register(app, isolation="thread")


@dataclass(frozen=True)
class Analysis:
    root: str
    stages: dict[str, str]  # stage → job id


async def analysed(app: Backstay, pipeline: Pipeline, payload: dict[str, Any] = ALL) -> Analysis:
    job = await analyse(pipeline, "36324", payload, created_by="admin-ui")
    async with app.worker():
        result = await job.result(timeout=60)
    return Analysis(job.job_id, {stage: each["job_id"] for stage, each in result["stages"].items()})


class Model:
    """A language model that answers `Topic 1`, `Topic 2`, …, and breaks off once where it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses: set[int] = set()  # which questions, counted from 1
        self.url = ""


@contextmanager
def language_model() -> Iterator[Model]:
    model = Model()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model.asked.append(body["messages"][0]["content"])
            if self.path != "/v1/messages" or len(model.asked) in model.refuses:
                self.send_error(503 if self.path == "/v1/messages" else 404)
                return
            answer = json.dumps({"content": [{"type": "text", "text": f'"Topic {len(model.asked)}".'}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
