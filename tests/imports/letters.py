"""The new application of the sources that send letters."""

from __future__ import annotations

from pydantic import BaseModel

from backstay import Backstay


class Letter(BaseModel):
    to: str
    pages: int = 1


def app_of(url: str, task: str) -> Backstay:
    """A queue with a handler of this name, in the queue `mail`, that returns to whom a letter goes."""
    app = Backstay(url)

    @app.job(task, queue="mail")
    async def send(payload: Letter) -> object:
        return payload.to

    return app
