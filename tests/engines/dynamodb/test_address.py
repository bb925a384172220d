"""A URL says where the tables are; what cannot be meant is refused before anything is asked."""

import pytest

from backstay.engines.dynamodb.address import parse
from backstay.engines.dynamodb.schema import Table
from backstay.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")


def test_a_region_is_enough() -> None:
    address = parse("dynamodb://shop?region=eu-north-1")

    assert (address.scheme, address.host, address.port) == ("https", "dynamodb.eu-north-1.amazonaws.com", 443)
    assert address.tables == {Table.JOBS: "shop_jobs", Table.RECORDS: "shop_records"}
    assert address.shown == "dynamodb://shop?region=eu-north-1"
    assert address.host_header == "dynamodb.eu-north-1.amazonaws.com"


def test_china_has_hosts_of_its_own() -> None:
    assert parse("dynamodb://shop?region=cn-north-1").host == "dynamodb.cn-north-1.amazonaws.com.cn"


def test_an_endpoint_may_be_anywhere() -> None:
    address = parse("dynamodb://shop?endpoint=http://127.0.0.1:8000")

    assert (address.scheme, address.host_header, address.on_this_machine) == ("http", "127.0.0.1:8000", True)


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://shop?region=eu-north-1",
        "dynamodb://shop?region=local&endpoint=http://127.0.0.1:8000",
        "dynamodb://shop?region=eu-north-1&table=Delphi_JobQueue&endpoint=https://vpce-1.example",
    ],
)
def test_what_tells_a_queue_from_others_is_shown_as_a_url(url: str) -> None:
    assert parse(f"{url}&shards=4&pool=20").shown == url


def test_the_environment_names_region_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://dynamo:8000")

    assert parse("dynamodb://shop").region == "us-east-2"
    assert parse("dynamodb://shop").host == "dynamo"


def test_the_table_of_jobs_may_have_a_name_of_its_own() -> None:
    assert parse("dynamodb://shop?region=eu-north-1&table=Delphi_JobQueue").tables[Table.JOBS] == "Delphi_JobQueue"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://shop",
        "dynamodb://x?region=eu-north-1",
        "dynamodb://sh/op?region=eu-north-1",
        "dynamodb://shop?region=eu-north-1#queue",
        "dynamodb://shop?region=",
        "dynamodb://shop?region=eu-north-1&table=x",
        "dynamodb://shop?region=eu-north-1&table=a/b",
        "dynamodb://shop?region=eu-north-1&table=shop_records",
        "dynamodb://shop?region=nowhere",
        "dynamodb://shop?region=eu-north-1&shards=0",
        "dynamodb://shop?region=eu-north-1&shards=many",
        "dynamodb://shop?region=eu-north-1&billing=free",
        "dynamodb://shop?region=eu-north-1&colour=red",
        "dynamodb://shop?region=eu-north-1&wake=perhaps",
        "dynamodb://shop?region=eu-north-1&region=eu-north-1",
        "dynamodb://shop?endpoint=dynamo:8000",
        "dynamodb://shop?endpoint=http://dynamo:port",
    ],
)
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(url)


@pytest.mark.parametrize(("url", "taken"), [("dynamodb:///shop", "'/shop'"), ("dynamodb://a@b:c", "'a@b:c'")])
def test_what_was_taken_for_the_prefix_is_said(url: str, taken: str) -> None:
    with pytest.raises(ConfigurationError, match=taken):
        parse(f"{url}?region=eu-north-1")


def test_a_proxy_is_refused_rather_than_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")

    with pytest.raises(ConfigurationError, match="NO_PROXY"):
        parse("dynamodb://shop?region=eu-north-1")
    monkeypatch.setenv("NO_PROXY", "localhost,.amazonaws.com")
    parse("dynamodb://shop?region=eu-north-1")
