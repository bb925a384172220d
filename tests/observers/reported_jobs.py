"""A handler of a worker process that reports to BACKSTAY_SENTRY_DSN."""

from backstay import Backstay

app = Backstay("sqlite:///jobs.db")  # in the folder in which the worker runs


@app.job("report", max_attempts=1)
def report(payload: dict[str, str]) -> None:
    raise RuntimeError("it does not print")
