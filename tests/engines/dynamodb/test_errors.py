"""An error says what to look at: at the address, where nobody of ours seems to be there."""

import pytest

from backstay.engines.dynamodb.transport import Refused, Unanswered, translate
from backstay.errors import BackstayError, StoreError, StoreUnavailable

AMAZON, OTHER = "dynamodb://shop?region=eu-north-1", "dynamodb://shop?region=local&endpoint=http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unanswered("no connection to …: Name or service not known", sent=False, astray=True), StoreUnavailable),
        (Refused("HTTP 501", "", http_status=501), StoreUnavailable),
        (Refused("HTTP 404", "", http_status=404), StoreError),
    ],
)
@pytest.mark.parametrize(("shown", "what"), [(AMAZON, "region"), (OTHER, "endpoint")])
def test_where_nobody_of_ours_answers_the_address_is_in_doubt(
    error: Refused | Unanswered, kind: type[BackstayError], shown: str, what: str
) -> None:
    said = translate(error, shown)

    assert isinstance(said, kind)
    assert str(said).endswith(f": is the {what} right?")
    assert ": :" not in str(said)


def test_that_repeating_is_safe_is_said_of_writes_alone() -> None:
    lost = Unanswered("no reply: not in time", sent=True)

    assert "it is safe to retry" in str(translate(lost, AMAZON, maybe_applied=True))
    assert str(translate(lost, AMAZON)).endswith("is not responding (no reply: not in time)")
