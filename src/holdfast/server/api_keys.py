"""API keys: `hf_<public id>_<secret>`, shown once, kept as a digest. Everything here blocks.

A key is looked up by its public part, and the whole of it is compared as a digest: the secret is random enough that a
fast hash gives nothing away. The tenant "" keeps the keys of all tenants, so that a key is found before its tenant is
known. The time of the last use is kept apart from the key: it is written while the key is in use, and that write must
never undo a revocation.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Literal, get_args

from holdfast.errors import InvalidArgument
from holdfast.log import codec
from holdfast.log.identifiers import check_id, check_owner
from holdfast.log.times import to_datetime
from holdfast.policy.quota import Quota
from holdfast.stores.base import Store

Role = Literal["read", "chat", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # in order: each includes the rights of the roles before it

KEYS, USES = "api-keys", "api-key-uses"
LONGEST_NAME = 200
MOST_DAYS = 36_500
_KEY = re.compile(r"hf_([A-Za-z0-9]{8})_[A-Za-z0-9_-]{43}")
_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """The stored facts about a key; times in microseconds since 1970."""

    id: str
    digest: str
    tenant: str
    user: str | None
    role: Role
    name: str | None
    created_at: int
    may_approve: bool = False  # beside the role; the role admin includes it
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used: int | None = None
    quota: dict[str, int | float] | None = None  # limits by name

    def is_valid(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def status(self, now: int) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.is_valid(now) else "expired"

    def to_public_dict(self, now: int) -> dict[str, Any]:
        """Return the facts for people: no digest, times as text."""
        facts = asdict(self) | {"status": self.status(now)}
        del facts["digest"]
        for each in ("created_at", "expires_at", "revoked_at", "last_used"):
            if facts[each] is not None:
                facts[each] = to_datetime(facts[each]).isoformat()
        return facts


def create_key(
    store: Store,
    *,
    role: Role,
    tenant: str = "",
    user: str | None = None,
    name: str | None = None,
    may_approve: bool = False,
    expires_days: float | None = None,
    quota: Quota | None = None,
) -> tuple[str, KeyInfo]:
    """Create a key; return the key and its stored info. The key itself is not stored, so it is shown only now."""
    if role not in ROLES:
        raise InvalidArgument(f"role {role!r} is none of {', '.join(ROLES)}")
    if tenant:
        check_id(tenant, "tenant")
    check_owner(user, "user")
    if role == "chat" and user is None:
        raise InvalidArgument("a key with the role chat is for the device of one user: give the user")
    if name is not None:
        codec.text_bytes(name, "name", LONGEST_NAME)
    if expires_days is not None and not 0 < expires_days <= MOST_DAYS:
        raise InvalidArgument(f"a key lives for more than 0 and at most {MOST_DAYS} days, not {expires_days:g}")
    keys, now = store.for_tenant(""), store.clock.now()
    while True:
        key_id = _make_public_id(store.clock.random_bytes(16))
        key = f"hf_{key_id}_{base64.urlsafe_b64encode(store.clock.random_bytes(32)).decode().rstrip('=')}"
        info = KeyInfo(
            id=key_id,
            digest=digest_of(key),
            tenant=tenant,
            user=user,
            role=role,
            name=name,
            created_at=now,
            may_approve=may_approve,
            expires_at=None if expires_days is None else now + int(expires_days * _DAY),
            quota=quota.to_dict() if quota else None,
        )
        if keys.kv_put(KEYS, key_id, _encode_key_info(info), only_new=True) is None:
            return key, info


def find_key(store: Store, key: str) -> KeyInfo | None:
    """Return the info of a key if it exists and its secret is right, else None. It may be expired or revoked."""
    key_id = public_id_of(key)
    kept = None if key_id is None else store.for_tenant("").kv_get(KEYS, key_id)
    if key_id is None or kept is None:
        return None
    info = _decode_key_info(key_id, kept)
    return info if hmac.compare_digest(info.digest, digest_of(key)) else None


def public_id_of(key: str) -> str | None:
    """Return the public part of a key; None if the text has not the form of a key."""
    match = _KEY.fullmatch(key)
    return match.group(1) if match else None


def list_key_ids(store: Store) -> frozenset[str]:
    """Return the public parts of all keys, also of those that are expired or revoked."""
    return frozenset(key_id for key_id, _ in _list_entries(store.for_tenant(""), KEYS))


def list_keys(store: Store) -> list[KeyInfo]:
    """Return the keys of every tenant, oldest first."""
    keys = store.for_tenant("")
    uses = {key_id: codec.decode(value)["at"] for key_id, value in _list_entries(keys, USES)}
    found = [_decode_key_info(key_id, value, last_used=uses.get(key_id)) for key_id, value in _list_entries(keys, KEYS)]
    return sorted(found, key=lambda info: (info.created_at, info.id))


def revoke_key(store: Store, key_id: str) -> bool:
    """Revoke a key; return False if it does not exist. A key that is revoked keeps its first time of revocation."""
    keys = store.for_tenant("")
    kept = keys.kv_get(KEYS, key_id)
    if kept is None:
        return False
    facts = codec.decode(kept)
    if facts["revoked_at"] is None:
        keys.kv_put(KEYS, key_id, codec.encode(facts | {"revoked_at": store.clock.now()}))
    return True


def record_key_use(store: Store, key_id: str, at: int) -> None:
    """Store the time of the last use of a key."""
    store.for_tenant("").kv_put(USES, key_id, codec.encode({"at": at}))


def digest_of(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _list_entries(store: Store, space: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while page := store.kv_list(space, after=found[-1][0] if found else None):
        found += page
    return found


def _encode_key_info(info: KeyInfo) -> bytes:
    facts = asdict(info)
    del facts["id"], facts["last_used"]
    return codec.encode(facts)


def _decode_key_info(key_id: str, value: bytes, last_used: int | None = None) -> KeyInfo:
    return KeyInfo(id=key_id, last_used=last_used, **codec.decode(value))


def _make_public_id(random: bytes) -> str:
    """Return eight letters and digits, so that a double click selects the public part."""
    number = int.from_bytes(random, "big")
    letters = []
    for _ in range(8):
        number, rest = divmod(number, 36)
        letters.append("0123456789abcdefghijklmnopqrstuvwxyz"[rest])
    return "".join(letters)
