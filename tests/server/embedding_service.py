"""A service of a user's own, with Backstay inside: what docs/howto/serve.md shows, as a process."""

import os
import socket

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import backstay.server
from backstay import Backstay

jobs = Backstay(os.environ["BACKSTAY_URL"])


class Song(BaseModel):
    title: str


@jobs.job("analysis")
async def analysis(payload: Song) -> dict[str, str]:
    return {"analysed": payload.title}


@jobs.job("later")
async def later(payload: Song) -> None: ...


service = FastAPI(lifespan=backstay.server.lifespan(jobs, worker=True, concurrency=2))
service.mount("/backstay", backstay.server.asgi(jobs))


@service.post("/songs")
async def add(song: Song) -> dict[str, str]:
    return {"job": (await jobs.submit("analysis", song)).job_id}


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(service, log_level="warning")).run([listener])
