"""The HTTP API from Python: a client, and a worker that needs only a URL and a key.

    from backstay.client import Client, RemoteWorker

    async with Client("https://jobs.example.com", key="bs_…") as client:
        job = await client.submit("embedding", {"text": "tide"})
        print(await job.result(timeout=30))

Errors are those of backstay.errors. Every request is safe to repeat: submits carry an idempotency key, claims a
request_id, settlements their token, so that a broken connection loses nothing and does nothing twice.
"""

from __future__ import annotations

from backstay.core.checks import how_to_install
from backstay.errors import ConfigurationError

try:
    from backstay.client.client import Client, JobEvent, RemoteHandle, RemoteJob
    from backstay.client.run import BlockingRemoteContext, RemoteContext
    from backstay.client.worker import RemoteWorker
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ConfigurationError(f"the client needs httpx: {how_to_install('client')}") from error


__all__ = ["BlockingRemoteContext", "Client", "JobEvent", "RemoteContext", "RemoteHandle", "RemoteJob", "RemoteWorker"]
