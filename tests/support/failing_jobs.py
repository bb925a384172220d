"""Handlers with rules for their failures, which run in child processes: those have to be importable."""

from collections.abc import Callable

from backstay import Backstay

_app = Backstay("sqlite:///unused.db")


class Busy(ConnectionError):
    """The service is busy; `after` says for how long."""

    def __init__(self, after: int) -> None:
        super().__init__(f"busy for {after} s")
        self.after = after


def by_the_answer(attempt: int, error: BaseException) -> float:
    return error.after * attempt if isinstance(error, Busy) else 1


@_app.job("apart", isolation="process", discard_on=KeyError, backoff=by_the_answer)
def apart(payload: str) -> None:
    if payload == "busy":
        raise Busy(1_000)
    raise KeyError(payload)


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    """Return an app on a test's own file with these handlers."""
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
