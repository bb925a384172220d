"""Signatures are those that Amazon's own library makes."""

from datetime import UTC, datetime

import pytest
from botocore import auth, awsrequest, credentials

from holdfast.stores.aws import signing

NOW = datetime(2026, 11, 16, 12, 30, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None), raising=False)


@pytest.mark.parametrize("token", [None, "a/session+token=="])
def test_a_request_to_dynamodb_is_signed_as_botocore_does(token: str | None) -> None:
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "DynamoDB_20120810.GetItem"}
    body = b'{"TableName":"jobs"}'
    request = awsrequest.AWSRequest("POST", "https://dynamodb.eu-north-1.amazonaws.com/", headers=headers, data=body)
    theirs = credentials.Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token)
    auth.SigV4Auth(theirs, "dynamodb", "eu-north-1").add_auth(request)

    ours = signing.Signer("dynamodb", "eu-north-1").headers(
        signing.Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token),
        NOW,
        "POST",
        "dynamodb.eu-north-1.amazonaws.com",
        "/",
        {},
        headers,
        signing.sha256(body),
    )

    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
    assert ours["authorization"] == request.headers["Authorization"]


def test_a_path_and_a_query_are_signed_as_botocore_does() -> None:
    url = "https://bucket.s3.eu-north-1.amazonaws.com/a%20b/c%2Bd~e?list-type=2&prefix=x%2Fy"
    request = awsrequest.AWSRequest("GET", url, headers={"X-Amz-Content-SHA256": signing.sha256(b"")})
    theirs = credentials.Credentials("AKIDEXAMPLE", "secret")
    auth.S3SigV4Auth(theirs, "s3", "eu-north-1").add_auth(request)

    ours = signing.Signer("s3", "eu-north-1").headers(
        signing.Keys("AKIDEXAMPLE", "secret"),
        NOW,
        "GET",
        "bucket.s3.eu-north-1.amazonaws.com",
        "/a b/c+d~e",
        {"list-type": "2", "prefix": "x/y"},
        {"x-amz-content-sha256": request.headers["X-Amz-Content-SHA256"]},
        request.headers["X-Amz-Content-SHA256"],
    )

    assert ours["authorization"] == request.headers["Authorization"]


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(signing.Keys("AKIDEXAMPLE", "secret", "token"))
