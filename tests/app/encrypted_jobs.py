"""A handler with encrypted fields in a child process: it must stand at the top level of a module."""

from collections.abc import Callable

from pydantic import BaseModel

from backstay import Backstay, Encrypted

_app = Backstay("sqlite:///unused.db")


class Secret(BaseModel):
    name: str
    card: Encrypted[str]


@_app.job("child", isolation="process")
def child(payload: Secret) -> Secret:
    return Secret(name=payload.card, card=payload.name)


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
