"""The optional language model: POLIS_LLM_URL and POLIS_LLM_MODEL, and POLIS_LLM_KEY if it needs a key.

It uses the Messages API: `POST /v1/messages` answers at once; `POST /v1/messages/batches` takes many requests, whose
results are fetched later.
"""

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = "2023-06-01"
ANSWER_SECONDS = 120.0
_UNKEPT = re.compile(r"[\x00\ud800-\udfff]")  # not allowed in database texts: NUL, and lone surrogates


class LLMError(Exception):
    """The model could not be reached, or its response is invalid."""


class NoBatches(LLMError):
    """The server answers single messages only."""


@dataclass(frozen=True)
class LLM:
    url: str
    model: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise LLMError(f"POLIS_LLM_URL is {self.url!r}: it begins with http:// or https://")

    def ask(self, prompt: str, max_tokens: int) -> str:
        """Ask one question and return the answer."""
        return _text(self._call("/v1/messages", self._message(prompt, max_tokens)))

    def submit(self, prompts: Mapping[str, str], max_tokens: int, idempotency_key: str) -> str:
        """Submit many questions; return the id by which to fetch the answers."""
        requests = [
            {"custom_id": name, "params": self._message(prompt, max_tokens)} for name, prompt in prompts.items()
        ]
        answer = self._call("/v1/messages/batches", {"requests": requests}, {"Idempotency-Key": idempotency_key})
        if not isinstance(answer.get("id"), str):
            raise LLMError(f"{self.url} took the questions and gave no id for them")
        return str(answer["id"])

    def check(self, batch_id: str) -> dict[str, str] | None:
        """Return the answers by name, or None while they are in progress. A question that failed is not included."""
        status = self._call(f"/v1/messages/batches/{batch_id}").get("processing_status")
        if not isinstance(status, str):
            raise LLMError(f"{self.url} does not say how far it is with {batch_id}")
        if status != "ended":
            return None
        lines = self._open(f"/v1/messages/batches/{batch_id}/results").splitlines()
        try:
            answers = [json.loads(line) for line in lines if line.strip()]
            return {
                str(each["custom_id"]): _text(each["result"]["message"])
                for each in answers
                if each["result"]["type"] == "succeeded"
            }
        except (ValueError, KeyError, TypeError) as error:
            raise LLMError(f"{self.url} gave results of {batch_id} that are none: {error!r:.200}") from error

    def _message(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": max_tokens, "messages": [{"role": "user", "content": prompt}]}

    def _call(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            answer = json.loads(self._open(path, body, headers))
        except ValueError as error:
            raise LLMError(f"{self.url}{path} answered with something that is not JSON") from error
        if not isinstance(answer, dict):
            raise LLMError(f"{self.url}{path} answered with a {type(answer).__name__}, not an object")
        return answer

    def _open(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> bytes:
        request = urllib.request.Request(  # noqa: S310 — the scheme was checked
            self.url.rstrip("/") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "anthropic-version": VERSION, **(headers or {})},
        )
        if self.key:
            request.add_header("x-api-key", self.key)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode(errors="replace")
            kind = NoBatches if error.code in (404, 405) and path == "/v1/messages/batches" else LLMError
            raise kind(f"{self.url}{path} answered {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:  # the latter: the connection broke in the middle
            raise LLMError(f"{self.url} cannot be reached: {error}") from error


def configured(model: str = "") -> LLM | None:
    """Return the model at POLIS_LLM_URL, or None: the one that a job names, else POLIS_LLM_MODEL."""
    url, name = os.environ.get("POLIS_LLM_URL", ""), model or os.environ.get("POLIS_LLM_MODEL", "")
    return LLM(url, name, os.environ.get("POLIS_LLM_KEY", "")) if url and name else None


def _text(message: Mapping[str, Any]) -> str:
    try:
        said = "".join(part["text"] for part in message["content"] if part["type"] == "text")
    except (KeyError, TypeError) as error:
        raise LLMError("the model's answer has no text in it") from error
    text = _UNKEPT.sub(" ", said).strip()
    if not text:
        raise LLMError("the model answered with an empty text")
    return text
