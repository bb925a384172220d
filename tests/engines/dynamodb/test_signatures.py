"""Signatures are those that Amazon's own library makes, and arrive as such."""

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from botocore import auth, awsrequest, credentials

from backstay.errors import BackstayError
from backstay.files import aws
from backstay.imports.dynamodb_table import ForeignTable
from tests.support.servers.signatures import fault

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


@pytest.mark.parametrize("secret", ["known", "another"])
async def test_a_request_arrives_with_a_signature_that_its_receiver_finds_right(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """DynamoDB Local takes any signature; this receiver takes those of one key."""
    faults: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            faults.append(fault({"AKID": "known"}, "dynamodb", "POST", self.path, headers, body))
            said = {"__type": "#InvalidSignatureException"} if faults[-1] else {"Table": {"TableName": "jobs"}}
            answer = json.dumps(said).encode()
            self.send_response(400 if faults[-1] else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        table = ForeignTable(f"dynamodb://jobs?region=eu-north-1&endpoint=http://127.0.0.1:{server.server_port}")
        try:
            if secret == "known":
                assert await table.described() == {"TableName": "jobs"}
                assert faults == [None]
            else:
                with pytest.raises(BackstayError, match="InvalidSignatureException"):
                    await table.described()
                assert faults[0] == "it is wrong"
        finally:
            await table.close()
            server.shutdown()
            thread.join()


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(aws.Keys("AKIDEXAMPLE", "secret", "token"))
