"""`python -m analysis serve`: runs the service on a local port, and prints its address."""

from __future__ import annotations

import logging
import socket

import uvicorn


def serve(host: str, port: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from analysis.service import service  # its settings are read here, not for `--help`

    listening = socket.create_server((host, port))
    listening.setblocking(False)
    print(f"analysis: http://{host}:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(service, log_config=None, timeout_graceful_shutdown=10)).run([listening])
