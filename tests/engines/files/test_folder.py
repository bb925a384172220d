"""A folder keeps the files of jobs, and is refused where other hosts would not find it."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.errors import ConfigurationError
from backstay.files.local import Files, LocalFiles
from backstay.limits import MIB
from tests.engines.files.suite import *  # noqa: F403


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return LocalFiles(tmp_path / "files")


@pytest.fixture
def again(tmp_path: Path) -> Files:
    return LocalFiles(tmp_path / "files")


@pytest.fixture
def new_job() -> Callable[[], str]:
    return lambda: str(uuid.uuid4())


@pytest.fixture
def job_id(new_job: Callable[[], str]) -> str:
    return new_job()


@pytest.fixture
def left_of(tmp_path: Path) -> Callable[[str], int]:
    return lambda job_id: sum(len(names) for _, _, names in os.walk(tmp_path / "files" / job_id))


@pytest.fixture
def heavy() -> int:
    return 200 * MIB


POSTGRES = "postgresql://db.example/shop"


@pytest.mark.parametrize("uri", ["/srv/files", "ftp://bucket", "file://srv/files", "file:///srv?share=true", "file:"])
def test_what_is_no_folder_is_an_error_at_once(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="file:///path/to/folder"):
        Backstay("sqlite:///jobs.db", artifacts=uri)


def test_a_local_folder_is_refused_where_workers_can_be_on_other_hosts() -> None:
    with pytest.raises(ConfigurationError, match=r"file:///srv/files\?shared=true"):
        Backstay(POSTGRES, artifacts="file:///srv/files")


def test_a_folder_that_all_hosts_share_is_taken() -> None:
    Backstay(POSTGRES, artifacts="file:///srv/files?shared=true")
    Backstay("sqlite:///jobs.db", artifacts="file:///srv/files?shared=true")
