"""A setting that cannot be meant is refused by the name of who said it."""

from pathlib import Path

import pytest

from backstay import Backstay, settings
from backstay.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKSTAY_URL", "BACKSTAY_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("BACKSTAY_URL", "dynamodb://x"), ("BACKSTAY_URL", "jobs.db"), ("BACKSTAY_ARTIFACTS", "gs://b")],
)
def test_a_variable_that_cannot_be_meant_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigurationError, match=f"^{variable}: "):
        Backstay()


def test_a_line_of_pyproject_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.backstay]\nurl = "jobs.db"\n')

    with pytest.raises(ConfigurationError, match=r"^\[tool.backstay\] url: "):
        Backstay()


def test_what_the_caller_said_himself_is_not_blamed_on_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTAY_URL", "sqlite:///jobs.db")

    with pytest.raises(ConfigurationError, match=r"^'other\.db' is not a URL"):
        Backstay("other.db")


@pytest.mark.parametrize("url", ["DYNAMODB://Shop?region=eu-north-1", "SQLite:///Jobs.db"])
def test_the_scheme_of_a_url_may_be_written_in_any_case(url: str) -> None:
    scheme, _, rest = url.partition(":")

    assert Backstay(url).url == settings.url(url) == f"{scheme.lower()}:{rest}"


def test_a_place_for_files_that_is_none_of_ours_is_answered_with_both_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"file:///.* or s3://"):
        Backstay("sqlite:///jobs.db", artifacts="gs://bucket/prefix")


def test_a_mistyped_option_of_a_bucket_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no option endpint; it has region, endpoint"):
        Backstay("sqlite:///jobs.db", artifacts="S3://bucket/prefix?endpint=http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("url", "seconds"),
    [("sqlite:///jobs.db", 5), ("postgresql://127.0.0.1/jobs", 5), ("dynamodb://jobs?region=eu-north-1", 30)],
)
def test_a_worker_looks_every_5_seconds_on_sql_and_every_30_on_dynamodb_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, url: str, seconds: float
) -> None:
    monkeypatch.delenv("BACKSTAY_POLL_INTERVAL", raising=False)
    assert Backstay(url)._poll_seconds == seconds
    monkeypatch.setenv("BACKSTAY_POLL_INTERVAL", "7")
    assert Backstay(url)._poll_seconds == 7
    assert Backstay(url, poll_interval=2)._poll_seconds == 2
