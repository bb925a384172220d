"""A local server that speaks Ollama's API for embeddings, and does as a test tells it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIMENSIONS = 768


class Ollama:
    """Each text has a vector of its own. Texts with POISON are refused, as a server does that chokes on one."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.arrived = threading.Event()  # set by each call
        self.go_on = threading.Event()  # calls wait for it
        self.go_on.set()
        self.dimensions = DIMENSIONS
        self.models = {"nomic-embed-text"}
        self.tells = True  # its dimensions, as servers do that have /api/show
        self.url = ""

    def show(self, asked: dict[str, object]) -> tuple[int, dict[str, object]]:
        if not self.tells or asked["model"] not in self.models:
            return 404, {"error": f"model '{asked['model']}' not found"}
        info = {"general.architecture": "nomic-bert", "nomic-bert.embedding_length": self.dimensions}
        return 200, {"model_info": info, "capabilities": ["embedding"]}

    def answer(self, asked: dict[str, object]) -> tuple[int, dict[str, object]]:
        texts = asked["input"]
        assert isinstance(texts, list)
        self.calls.append(texts)
        self.arrived.set()
        self.go_on.wait(30)
        if asked["model"] not in self.models:
            return 404, {"error": f'model "{asked["model"]}" not found, try pulling it first'}
        if any("POISON" in text for text in texts):
            return 500, {"error": "failed to encode"}
        return 200, {"model": asked["model"], "embeddings": [self.vector(text) for text in texts]}

    def vector(self, text: str) -> list[float]:
        draw = random.Random(text)
        return [draw.gauss(0, 1) for _ in range(self.dimensions)]


@contextmanager
def ollama_server() -> Iterator[Ollama]:
    ollama = Ollama()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = {"/api/embed": ollama.answer, "/api/show": ollama.show}[self.path]
            code, said = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(said).encode()
            try:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # who asked was killed

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        ollama.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield ollama
        finally:
            ollama.go_on.set()
            server.shutdown()
            thread.join()
