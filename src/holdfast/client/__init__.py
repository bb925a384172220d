"""The HTTP API from Python: a client, and a worker that needs nothing but a URL and a key.

    from holdfast.client import Client, RemoteWorker

    async with Client("https://jobs.example.com", key="hf_…") as client:
        job = await client.submit("embedding", {"text": "tide"})
        print(await job.result(timeout=30))

Errors are those of holdfast.errors. Whatever is sent may be sent again: submits carry a key of their own, claims a
request_id, settlements their token, so that a connection which breaks loses nothing and does nothing twice.
"""

from __future__ import annotations

from holdfast.errors import ConfigurationError

try:
    import httpx as _httpx  # noqa: F401
except ModuleNotFoundError as error:
    raise ConfigurationError('the client needs httpx: pip install "holdfast[client]"') from error

from holdfast.client.client import Client
from holdfast.client.context import BlockingRemoteContext, RemoteContext
from holdfast.client.records import RemoteHandle, RemoteJob
from holdfast.client.streaming import JobEvent
from holdfast.client.worker import RemoteWorker

__all__ = ["BlockingRemoteContext", "Client", "JobEvent", "RemoteContext", "RemoteHandle", "RemoteJob", "RemoteWorker"]
