"""A handler in a child process that reads payloads of an older release: it must stand at the top level of a module."""

from typing import Any

from pydantic import BaseModel

from backstay import Backstay

_app = Backstay("sqlite:///unused.db")


class Name(BaseModel):
    first: str
    last: str


def split(payload: Any, version: int) -> Any:
    if payload["name"] == "broken":
        raise KeyError("no such name")
    first, _, last = payload["name"].partition(" ")
    return {"first": first, "last": f"{last} of version {version}"}


@_app.job("greet", isolation="process", version=2, upcast=split, max_attempts=1)
def greet(payload: Name) -> str:
    return f"{payload.last}, {payload.first}"


def bind(app: Backstay) -> Backstay:
    app.handlers["greet"] = _app.handlers["greet"]
    return app
