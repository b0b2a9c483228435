"""Encryption at rest: a master key wraps data keys, and a data key seals what a store writes.

The master key never touches data, so that rotating it rewraps a few bytes and rewrites no log. No key may get into a
text: errors and representations name a master key by its fingerprint.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import InvalidArgument, MissingExtra, WrongKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

MasterKey = bytes | str | Callable[[], bytes | str]

VERSION = 1
KEY, FINGERPRINT, NONCE, TAG = 32, 8, 12, 16  # sizes in bytes
HEADER = 1 + FINGERPRINT
WRAPPED = HEADER + NONCE + KEY + TAG

HEX = re.compile(r"[0-9A-Fa-f]{64}")
BASE64 = re.compile(r"[0-9A-Za-z+/_-]{43}=?")
LONGEST_FILE = 1024
ACCEPTED = (
    "give 32 random bytes, their 64 hex digits, their base64, 'env:NAME' or 'file:/path' where one of these is, or a "
    "function that returns it; a passphrase is no key. To make one: "
    'python -c "from secrets import token_hex; print(token_hex(32))"'
)

_TWO_NUMBERS = struct.Struct(">QQ")


def event_context(number: int, seq: int) -> bytes:
    """The place of an event, its log and its seq: sealed there, it opens nowhere else."""
    return _TWO_NUMBERS.pack(number, seq)


class Vault:
    """A master key: it makes, wraps and unwraps the data keys of a store."""

    __slots__ = ("_cipher", "_fingerprint")

    def __init__(self, key: MasterKey) -> None:
        master = _resolve_key(key)
        self._cipher = _aes_gcm(master)
        self._fingerprint = sha256(b"holdfast master\n" + master).digest()[:FINGERPRINT]

    def __repr__(self) -> str:
        return f"Vault({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """Names the master key without telling it."""
        return self._fingerprint.hex()

    def new_key(self, context: bytes) -> tuple[bytes, DataKey]:
        """A fresh data key: wrapped, to be stored, and open, to be used."""
        key = SYSTEM_CLOCK.random_bytes(KEY)
        return self._wrap(key, context), DataKey(key)

    def unwrap(self, wrapped: bytes, context: bytes) -> DataKey:
        """The data key that this master key wrapped for this context."""
        return DataKey(self._unwrap(wrapped, context))

    def rewrap(self, wrapped: bytes, context: bytes, new: Vault) -> bytes:
        """The same data key, wrapped by another master key: what it sealed stays readable."""
        return new._wrap(self._unwrap(wrapped, context), context)

    def _wrap(self, key: bytes, context: bytes) -> bytes:
        header, nonce = bytes([VERSION]) + self._fingerprint, SYSTEM_CLOCK.random_bytes(NONCE)
        return header + nonce + self._cipher.encrypt(nonce, key, header + context)

    def _unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        if len(wrapped) != WRAPPED or wrapped[0] != VERSION:
            raise WrongKey(
                "the wrapped data key is of an unknown form: a newer holdfast wrote it, then upgrade; "
                "or it was altered, then restore it from a backup"
            )
        header, nonce = wrapped[:HEADER], wrapped[HEADER : HEADER + NONCE]
        # Before the cipher, which could only say that something is wrong, not which key would be right.
        if header[1:] != self._fingerprint:
            raise WrongKey(
                f"the data is encrypted with master key {header[1:].hex()}, and {self.fingerprint} was given: "
                "open the store with the key it was encrypted with, or rotate it from that key to this one"
            )
        try:
            return self._cipher.decrypt(nonce, wrapped[HEADER + NONCE :], header + context)
        except _invalid_tag() as error:
            raise WrongKey(
                f"a data key of master key {self.fingerprint} does not unwrap: it was altered, or belongs elsewhere; "
                "restore it from a backup"
            ) from error


class DataKey:
    """An open data key. Its nonces are random, which is safe for some four billion seals."""

    __slots__ = ("_cipher", "_key", "_marking", "_naming")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = _aes_gcm(key)
        self._naming: AESSIV | None = None
        self._marking: bytes | None = None

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Encrypt; the same data never looks the same twice."""
        nonce = SYSTEM_CLOCK.random_bytes(NONCE)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        """What was sealed in this context, or `WrongKey`."""
        if len(data) < NONCE + TAG:
            raise _decryption_error("a sealed record is too short")
        try:
            # A view, because copying a megabyte takes ten times as long as decrypting it.
            return self._cipher.decrypt(data[:NONCE], memoryview(data)[NONCE:], context)
        except _invalid_tag() as error:
            raise _decryption_error("a sealed record does not open with its data key") from error

    def encrypt_name(self, text: bytes) -> bytes:
        """Encrypt so that the same text looks the same every time, and can be looked up."""
        # One byte in front, because older OpenSSL refuses to encrypt nothing in this mode.
        return self._name_cipher().encrypt(b"\0" + text, None)

    def decrypt_name(self, data: bytes) -> bytes:
        """The text behind a name."""
        try:
            return self._name_cipher().decrypt(data, None)[1:]
        except _invalid_tag() as error:
            raise _decryption_error("a name does not open with its data key") from error

    def digest_with_key(self, text: bytes) -> bytes:
        """Thirty-two bytes that tell equal texts from different ones, and nothing else."""
        if self._marking is None:
            self._marking = self._derive_key(b"holdfast mark", 32)
        return hmac.digest(self._marking, text, "sha256")

    def _name_cipher(self) -> AESSIV:
        if self._naming is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV

            self._naming = AESSIV(self._derive_key(b"holdfast name", 64))
        return self._naming

    def _derive_key(self, purpose: bytes, size: int) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), size, salt=None, info=purpose).derive(self._key)


def _decryption_error(problem: str) -> WrongKey:
    return WrongKey(f"{problem}: it was altered, or belongs to another place or key; restore it from a backup")


def _aes_gcm(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingExtra("encryption at rest", "secure") from error
    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    """Called in `except`, so that the import costs nothing as long as nothing is wrong."""
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def _resolve_key(key: MasterKey) -> bytes:
    if not isinstance(key, bytes | str) and callable(key):
        key = key()
    if isinstance(key, bytes):
        if len(key) != KEY:
            raise _invalid_key(f"has {len(key)} bytes")
        return key
    if not isinstance(key, str):
        raise _invalid_key(f"is of type {type(key).__name__}")
    if key.startswith("env:"):
        return _from_environment(key.removeprefix("env:"))
    if key.startswith("file:"):
        return _from_file(key.removeprefix("file:"))
    return _from_text(key, "is of no known form")


def _from_environment(name: str) -> bytes:
    value = os.environ.get(name)
    if value is None:
        raise _invalid_key(f"is to be in the environment variable {_mask_key(name)}, which is not set")
    return _from_text(value, f"in the environment variable {_mask_key(name)} is of no known form")


def _from_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST_FILE)  # a key is short: another file is not read to its end
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        # Without the cause, which repeats the path.
        raise _invalid_key(f"is to be in the file {_mask_key(path)}, which cannot be read ({reason})") from None
    # Raw bytes may end in what looks like a newline; only a text loses it.
    if len(data) == KEY:
        return data
    return _from_text(data.decode("latin-1"), f"in the file {_mask_key(path)} is of no known form")


def _from_text(text: str, problem: str) -> bytes:
    text = text.rstrip("\r\n")
    if HEX.fullmatch(text):
        return bytes.fromhex(text)
    if BASE64.fullmatch(text):
        return base64.b64decode(text[:43].replace("-", "+").replace("_", "/") + "=")
    raise _invalid_key(problem)


def _mask_key(name: str) -> str:
    """The name of a variable or file, unless it is the key itself, given by mistake."""
    return "(not shown: it looks like a key)" if HEX.fullmatch(name) or BASE64.fullmatch(name) else repr(name)


def _invalid_key(problem: str) -> InvalidArgument:
    return InvalidArgument(f"the master key {problem}: {ACCEPTED}")
