"""Signatures are those that Amazon's own library makes."""

from datetime import UTC, datetime

import pytest
from botocore import auth, awsrequest, credentials

from backstay.files import aws

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

    ours = aws.Signer("eu-north-1").headers(
        aws.Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token),
        NOW,
        "dynamodb.eu-north-1.amazonaws.com",
        headers,
        body,
    )

    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
    assert ours["authorization"] == request.headers["Authorization"]


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(aws.Keys("AKIDEXAMPLE", "secret", "token"))
