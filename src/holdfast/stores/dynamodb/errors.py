"""What DynamoDB and the way to it say, as classes of answers, and those as our own errors."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    StoreBusy,
    StoreError,
    StoreGone,
    StoreUnavailable,
)
from holdfast.stores.dynamodb.values import Item


class Reason(msgspec.Struct, frozen=True):
    """Why a transaction was cancelled, of one of its items; no code: it was not because of this one."""

    code: str | None
    item: Item | None = None  # what stands there, where the condition failed


class Unanswered(Exception):
    """No answer. `sent`: the request may have been applied all the same. `astray`: maybe it went to somebody else."""

    def __init__(self, message: str, *, sent: bool, astray: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.astray = astray


class Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        reasons: tuple[Reason, ...] = (),
        item: Item | None = None,
        http_status: int = 400,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.reasons = reasons
        self.item = item
        self.http_status = http_status


class Answer(Enum):
    """How to take a refusal."""

    CONDITION = "condition"  # the verb judges
    CONFLICT = "conflict"  # another transaction, or our own earlier try: again, with the same token
    THROTTLED = "throttled"
    SERVER = "server"  # it may or may not be applied
    GONE = "gone"
    IN_USE = "in use"
    CREDENTIALS = "credentials"
    EXPIRED = "expired"  # credentials that can be fetched anew
    OURS = "ours"  # a request that cannot be right


_ANSWERS = {
    "ConditionalCheckFailedException": Answer.CONDITION,
    "ConditionalCheckFailed": Answer.CONDITION,
    "TransactionConflictException": Answer.CONFLICT,
    "TransactionConflict": Answer.CONFLICT,
    "TransactionInProgressException": Answer.CONFLICT,
    "ReplicatedWriteConflictException": Answer.CONFLICT,
    "ProvisionedThroughputExceededException": Answer.THROTTLED,
    "ProvisionedThroughputExceeded": Answer.THROTTLED,
    "ThrottlingException": Answer.THROTTLED,
    "ThrottlingError": Answer.THROTTLED,
    "RequestLimitExceeded": Answer.THROTTLED,
    "LimitExceededException": Answer.THROTTLED,
    "InternalServerError": Answer.SERVER,
    "InternalServerErrorException": Answer.SERVER,
    "InternalFailure": Answer.SERVER,
    "ServiceUnavailable": Answer.SERVER,
    "ServiceUnavailableException": Answer.SERVER,
    "ResourceNotFoundException": Answer.GONE,
    "TableNotFoundException": Answer.GONE,
    "ResourceInUseException": Answer.IN_USE,
    "ExpiredTokenException": Answer.EXPIRED,
    "ExpiredToken": Answer.EXPIRED,
    "AccessDeniedException": Answer.CREDENTIALS,
    "UnrecognizedClientException": Answer.CREDENTIALS,
    "InvalidSignatureException": Answer.CREDENTIALS,
    "MissingAuthenticationTokenException": Answer.CREDENTIALS,
    "MissingAuthenticationToken": Answer.CREDENTIALS,
    "IncompleteSignatureException": Answer.CREDENTIALS,
    "IncompleteSignature": Answer.CREDENTIALS,
    "RequestExpired": Answer.CREDENTIALS,
}
AGAIN = frozenset({Answer.CONFLICT, Answer.THROTTLED, Answer.SERVER})


def answer(refused: Refused) -> Answer:
    if refused.reasons:
        return _of_reasons(each.code for each in refused.reasons if each.code is not None)
    found = _ANSWERS.get(refused.code)
    if found is None:
        return Answer.SERVER if refused.http_status >= 500 else Answer.OURS
    return found


def _of_reasons(codes: Iterable[str]) -> Answer:
    """A condition that failed is an answer, whatever else was in the way; a conflict is none."""
    found = {_ANSWERS.get(code, Answer.OURS) for code in codes}
    for each in (Answer.OURS, Answer.CONDITION, Answer.THROTTLED, Answer.CONFLICT):
        if each in found:
            return each
    return Answer.SERVER


def refused_of(http_status: int, document: dict[str, Any], decode: Any) -> Refused:
    """From the body of an error."""
    code = str(document.get("__type", "")).rpartition("#")[2] or f"HTTP {http_status}"
    message = str(document.get("message") or document.get("Message") or "")
    reasons = tuple(
        Reason(
            None if each.get("Code") in (None, "None") else str(each["Code"]),
            decode(each["Item"]) if each.get("Item") else None,
        )
        for each in document.get("CancellationReasons") or ()
    )
    if reasons and not message:
        message = ", ".join(each.code or "None" for each in reasons)
    item = decode(document["Item"]) if document.get("Item") else None
    return Refused(code, message, reasons=reasons, item=item, http_status=http_status)


def translate(error: Refused | Unanswered, shown: str, *, maybe_applied: bool = False) -> HoldfastError:
    """As what a caller sees it. Repeating is the caller's to decide where it says so."""
    may = "; the last write may have been applied: repeating is safe" if maybe_applied else ""
    is_right = f": is the {'endpoint' if 'endpoint=' in shown else 'region'} right?"
    if isinstance(error, Unanswered):
        return StoreUnavailable(f"{shown} does not answer ({error}){may or (is_right if error.astray else '')}")
    if error.code.startswith("HTTP "):  # without the name that DynamoDB gives to each of its errors
        kind = StoreUnavailable if answer(error) is Answer.SERVER else StoreError
        return kind(f"{shown} answers {error}{may or is_right}")
    match answer(error):
        case Answer.CONFLICT:
            return StoreBusy(f"{shown}: others write to the same items ({error.code}): repeating is safe")
        case Answer.THROTTLED:
            return StoreBusy(f"{shown} is throttled ({error.code}): raise the tables' capacity, or use more shards")
        case Answer.SERVER:
            return StoreUnavailable(f"{shown}: {error}{may}")
        case Answer.GONE:
            return StoreGone(f"{shown}: a table is gone ({error.message}): restore it, or run holdfast migrate")
        case Answer.CREDENTIALS | Answer.EXPIRED:
            return ConfigurationError(f"{shown}: {error}: check the credentials and what they may do")
        case _:
            return StoreError(f"{shown}: {error}")
