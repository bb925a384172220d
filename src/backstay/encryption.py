"""Encrypted fields: `Encrypted[str]` is plain in the handler, and ciphertext everywhere else.

A value is encrypted when a payload or a result becomes the JSON that is stored, and decrypted when that JSON becomes
the handler's model again; store, dashboard, HTTP, logs and exports see {"$encrypted": "<key id>.<text>"} in its place.
AES-GCM authenticates the value together with its job type and field, so that ciphertext cannot be moved to another one.

The nonce is derived from the key and the value: the same value in the same field gives the same text. Equality must
survive for jobs to be compared at all (the child of a parent that runs again, an Idempotency-Key, identical jobs).
Readers of the store can therefore see which jobs have equal values, and nothing else about them.

Keys are a setting, BACKSTAY_ENCRYPTION_KEYS="new:<key>,old:<key>": the first one encrypts, all of them decrypt.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from backstay import codec, settings
from backstay.core import sensitive
from backstay.errors import ConfigurationError, DecryptionFailed, EncryptionKeyMissing

T = TypeVar("T")
WORD = "encrypted"  # in a schema
ENVELOPE = "$encrypted"
KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_LENGTH_MAX = 32
_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
PAYLOAD, RESULT = "payload", "result"


class _Marker:
    """Marks a type in schemas; what it validates and how it is written does not change."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(source)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        return {**handler.resolve_ref_schema(found), WORD: True, "sensitive": True}

    def __repr__(self) -> str:
        return "encrypted"


Encrypted = Annotated[T, _Marker()]


# Keys


class Keyring:
    """The keys of this process: the first one encrypts, each decrypts what names it."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        self._ids = [name for name, _ in keys]
        self._ciphers = {name: _Cipher(key) for name, key in keys}

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ids)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of the keys, the one that encrypts first."""
        return tuple(self._ids)

    def encrypt(self, plain: bytes, about: bytes) -> str:
        if not self._ids:
            raise EncryptionKeyMissing(
                "this type has encrypted fields, and there is no key to encrypt them: set BACKSTAY_ENCRYPTION_KEYS, as"
                " docs/howto/encrypt.md says"
            )
        name = self._ids[0]
        return f"{name}.{_text(self._ciphers[name].encrypt(plain, about))}"

    def decrypt(self, text: str, about: bytes) -> bytes:
        name, _, sealed = text.partition(".")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise EncryptionKeyMissing(
                f"a field is encrypted with the key {name[:_ID_LENGTH_MAX]!r}, which this process does not have"
                f" (it has {', '.join(self._ids) or 'none'}): add it to BACKSTAY_ENCRYPTION_KEYS"
            )
        return cipher.decrypt(_bytes(sealed), about, name)


class _Cipher:
    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigurationError(
                "encrypted fields need the package cryptography: run pip install '.[encryption]' in a checkout"
                " (once published: pip install 'backstay[encryption]')"
            ) from None
        self._aead = AESGCM(key)
        self._nonce_key = hmac.digest(key, b"backstay nonce", "sha256")

    def encrypt(self, plain: bytes, about: bytes) -> bytes:
        length = len(about).to_bytes(4, "big")
        nonce = hmac.digest(self._nonce_key, length + about + plain, "sha256")[:_NONCE_BYTES]
        return nonce + self._aead.encrypt(nonce, plain, about)

    def decrypt(self, sealed: bytes, about: bytes, name: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise DecryptionFailed(
                f"a field that is encrypted with the key {name!r} cannot be decrypted: it was changed, belongs to"
                " another job type or field, or another key has this name"
            ) from None


def new_key() -> str:
    """Return a new key as text."""
    return _text(secrets.token_bytes(KEY_BYTES))


def keyring() -> Keyring:
    """Return the keys of this process, from the setting."""
    return parsed(settings.setting("encryption_keys", None, str, ""))


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> Keyring:
    """Return the keys in a setting. The text of a key never appears in an error."""
    keys: list[tuple[str, bytes]] = []
    for place, part in enumerate(filter(None, (each.strip() for each in text.split(","))), 1):
        name, colon, key = part.partition(":")
        if not colon or not name or len(name) > _ID_LENGTH_MAX or not _ID_CHARACTERS.issuperset(name):
            raise ConfigurationError(
                f"BACKSTAY_ENCRYPTION_KEYS: key {place} needs a name of up to {_ID_LENGTH_MAX} letters, digits, - and"
                " _ before it: name:key"
            )
        try:
            raw = _bytes(key)
        except DecryptionFailed:
            raw = b""
        if len(raw) != KEY_BYTES:
            raise ConfigurationError(
                f"BACKSTAY_ENCRYPTION_KEYS: the key {name!r} is not {KEY_BYTES} bytes as base64: make one with"
                ' "backstay encryption-key"'
            )
        if name in {each for each, _ in keys}:
            raise ConfigurationError(f"BACKSTAY_ENCRYPTION_KEYS has two keys {name!r}")
        keys.append((name, raw))
    return Keyring(keys)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        padded = text.replace("+", "-").replace("/", "_").rstrip("=")
        return base64.b64decode(padded + "=" * (-len(padded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DecryptionFailed("an encrypted field is not base64: it was changed") from None


# Documents


@functools.lru_cache(maxsize=256)
def marks_of(schema: str | None) -> tuple[str, ...]:
    """Return the paths of encrypted fields in a schema; most have none."""
    return sensitive.marks_of(schema, WORD)


def encrypted(text: str, marks: Iterable[str], job_type: str, what: str) -> str:
    """Return a JSON document with the values at the marks encrypted. A null stays null, and what is encrypted already
    stays as it is."""
    keys = keyring()

    def seal(path: tuple[str, ...], value: Any) -> Any:
        if value is None or _sealed(value) is not None:
            return value
        return {ENVELOPE: keys.encrypt(codec.encode(value), _about(job_type, what, path))}

    return codec.encode(sensitive.replaced(tuple(marks), codec.decode(text), seal)).decode()


def plain(text: str, job_type: str, what: str) -> str:
    """Return a JSON document with all that is encrypted in it decrypted."""
    if ENVELOPE not in text:
        return text
    keys = keyring()

    def open_(path: tuple[str, ...], value: Any) -> Any:
        if (sealed := _sealed(value)) is not None:
            return msgspec.Raw(keys.decrypt(sealed, _about(job_type, what, path)))
        match value:
            case dict():
                return {name: open_((*path, name), part) for name, part in value.items()}
            case list():
                return [open_((*path, sensitive.ANY), part) for part in value]
            case _:
                return value

    return codec.encode(open_((), codec.decode(text))).decode()


def is_sealed(value: Any) -> bool:
    """Return whether a value of a document is encrypted."""
    return _sealed(value) is not None


def _sealed(value: Any) -> str | None:
    """Return the text of an encrypted value; None if it is none."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(found := value.get(ENVELOPE), str):
        return found
    return None


def _about(job_type: str, what: str, path: tuple[str, ...]) -> bytes:
    return codec.encode([job_type, what, *path])
