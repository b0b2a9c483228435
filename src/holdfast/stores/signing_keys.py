"""Signatures with an Ed25519 key outside of the database: of heads, and of receipts for what was erased.

What is signed is canonical bytes that begin with what they are, so that the signature of one thing is never taken for
that of another. A head names its tenant, its log, its number and its hash: the chain carries the rest. The private key
gets into no text; errors and signatures name a key by its fingerprint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument, MissingExtra
from holdfast.log import codec
from holdfast.log.times import to_datetime

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from holdfast.stores.base import Log

SIGNING_KEY, PUBLIC_KEYS = "HOLDFAST_SIGNING_KEY", "HOLDFAST_PUBLIC_KEYS"
_HEAD, _RECEIPT = b"holdfast head 1\n", b"holdfast receipt 1\n"
_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_LONGEST_FILE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """Who signed that a log had an event of this number and hash, and when. Not checked until `PublicKeys` did."""

    tenant: str
    kind: str
    id: str
    uid: str  # of the log, which no other log ever has
    seq: int
    hash: str  # of event `seq`, in hex
    at: int  # microseconds since 1970, by the clock of the signer
    key: str  # fingerprint of the public key
    signature: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> SignedHead:
        """Raises InvalidArgument for what is no signed head."""
        names = cls.__dataclass_fields__
        if not isinstance(data, Mapping) or data.keys() != names.keys():
            raise InvalidArgument(f"a signed head has exactly these fields: {', '.join(names)}")
        for name, value in data.items():
            if type(value) is not (int if name in ("seq", "at") else str):
                raise InvalidArgument(f"{name!r} of a signed head has the wrong type")
        return cls(**data)

    @property
    def statement(self) -> bytes:
        """The bytes that are signed."""
        fields = [self.tenant, self.kind, self.id, self.uid, self.seq, self.hash, self.at, self.key]
        return _HEAD + codec.encode(fields)

    @property
    def time(self) -> str:
        return to_datetime(self.at).isoformat(timespec="seconds")


class SigningKey:
    """The private key."""

    __slots__ = ("_key", "fingerprint", "public_key")

    def __init__(self, key: str) -> None:
        """`key` is 64 hex digits, or file:/path to a file that has them."""
        self._key = _private_key(_read_key(key, "signing key"))
        public = self._key.public_key().public_bytes_raw()
        self.public_key = public.hex()
        self.fingerprint = _fingerprint(public)

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint})"

    @classmethod
    def from_environment(cls) -> SigningKey | None:
        """The key of HOLDFAST_SIGNING_KEY; None if it is not set."""
        given = os.environ.get(SIGNING_KEY)
        return cls(given) if given else None

    def sign_head(self, tenant: str, log: Log, *, seq: int, hash: bytes, at: int) -> SignedHead:
        blank = SignedHead(
            tenant=tenant,
            kind=log.kind,
            id=log.id,
            uid=log.uid,
            seq=seq,
            hash=hash.hex(),
            at=at,
            key=self.fingerprint,
            signature="",
        )
        return SignedHead(**blank.to_dict() | {"signature": self._key.sign(blank.statement).hex()})

    def sign_receipt(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """A receipt: the facts, and who vouches for them. It is plain JSON, to be kept or sent."""
        receipt = dict(facts)
        signature = self._key.sign(_RECEIPT + codec.encode([self.fingerprint, receipt])).hex()
        return {"receipt": receipt, "key": self.fingerprint, "signature": signature}


class PublicKeys:
    """The public keys whose signatures count; several, because a signing key may be replaced by another."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Each key is 64 hex digits, or the path of a file that has them."""
        self._keys: dict[str, Ed25519PublicKey] = {}
        for key in keys:
            data = _read_key(key if _HEX.fullmatch(key) else f"file:{key.removeprefix('file:')}", "public key")
            self._keys[_fingerprint(data)] = _public_key(data)

    @classmethod
    def of(cls, given: str | Iterable[str] | PublicKeys) -> PublicKeys:
        if isinstance(given, PublicKeys):
            return given
        return cls([given] if isinstance(given, str) else given)

    @classmethod
    def from_environment(cls) -> PublicKeys:
        """Those of HOLDFAST_PUBLIC_KEYS, and that of the signing key of this process."""
        given = [each.strip() for each in os.environ.get(PUBLIC_KEYS, "").split(",") if each.strip()]
        own = SigningKey.from_environment()
        return cls(given if own is None else [*given, own.public_key])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find_flaw(self, head: SignedHead) -> str | None:
        """Why the signature does not count; None if it does."""
        return self._find_flaw(head.key, head.signature, head.statement)

    def find_receipt_flaw(self, data: object) -> str | None:
        if not isinstance(data, Mapping) or not isinstance(data.get("receipt"), Mapping):
            return "it is no receipt"
        key, signature = data.get("key"), data.get("signature")
        if not isinstance(key, str) or not isinstance(signature, str):
            return "it has no signature"
        return self._find_flaw(key, signature, _RECEIPT + codec.encode([key, dict(data["receipt"])]))

    def _find_flaw(self, fingerprint: str, signature: str, statement: bytes) -> str | None:
        from cryptography.exceptions import InvalidSignature

        key = self._keys.get(fingerprint)
        if key is None:
            return f"it was signed with the key {fingerprint}, which is none of {', '.join(self._keys)}"
        try:
            key.verify(bytes.fromhex(signature), statement)
        except (InvalidSignature, ValueError):
            return "its signature is wrong: what was signed was altered"
        return None


def make_key_file(path: Path, seed: bytes) -> SigningKey:
    """Write a new signing key, readable by this user only, and its public key beside it as `<path>.pub`."""
    key = SigningKey(seed.hex())
    for file, text, mode in ((path, seed.hex(), 0o600), (path.with_name(path.name + ".pub"), key.public_key, 0o644)):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise InvalidArgument(f"{file} cannot be made: {error.strerror}") from error
        with os.fdopen(descriptor, "w") as out:
            out.write(text + "\n")
    return key


def _fingerprint(public: bytes) -> str:
    return sha256(b"holdfast signing\n" + public).hexdigest()[:16]


def _read_key(key: str, name: str) -> bytes:
    text = key
    if key.startswith("file:"):
        try:
            with open(key.removeprefix("file:"), "rb") as file:
                text = file.read(_LONGEST_FILE).decode("ascii", "replace").strip()
        except OSError as error:
            raise InvalidArgument(f"the {name} cannot be read from its file: {error.strerror}") from None
    if not _HEX.fullmatch(text):
        raise InvalidArgument(
            f"the {name} is not of a known form: give its 64 hex digits, or file:/path to a file that has them; "
            "holdfast keys signing FILE makes a pair"
        )
    return bytes.fromhex(text)


def _private_key(data: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingExtra("signing", "secure") from error
    return Ed25519PrivateKey.from_private_bytes(data)


def _public_key(data: bytes) -> Ed25519PublicKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise MissingExtra("signatures", "secure") from error
    return Ed25519PublicKey.from_public_bytes(data)
