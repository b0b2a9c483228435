"""API keys: `hf_<public id>_<secret>`, shown once, kept as a digest. Everything here blocks.

A key is looked up by its public part, and the whole of it is compared as a digest: the secret is random enough that a
fast hash gives nothing away. All keys are kept by the tenant "", whoever they are for, so that a key is found before
its tenant is known. When a key was last used is kept apart from it: that is written while keys are in use, and must
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
from holdfast.log.events import to_datetime
from holdfast.log.identifiers import checked_id, checked_owner
from holdfast.stores.base import Store

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may

KEYS, USES = "api-keys", "api-key-uses"
LONGEST_NAME = 200
MOST_DAYS = 36_500
_KEY = re.compile(r"hf_([A-Za-z0-9]{8})_[A-Za-z0-9_-]{43}")
_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """What is known about a key; times in microseconds since 1970."""

    id: str
    digest: str
    tenant: str
    user: str | None
    role: Role
    name: str | None
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used: int | None = None

    def is_valid(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def status(self, now: int) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.is_valid(now) else "expired"

    def shown(self, now: int) -> dict[str, Any]:
        """For people: no digest, times as text."""
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
    expires_days: float | None = None,
) -> tuple[str, KeyInfo]:
    """A new key, and what is kept of it. Nobody can show the key again."""
    if role not in ROLES:
        raise InvalidArgument(f"role {role!r} is none of {', '.join(ROLES)}")
    if tenant:
        checked_id(tenant, "tenant")
    checked_owner(user, "user")
    if name is not None:
        codec.text_bytes(name, "name", LONGEST_NAME)
    if expires_days is not None and not 0 < expires_days <= MOST_DAYS:
        raise InvalidArgument(f"a key lives for more than 0 and at most {MOST_DAYS} days, not {expires_days:g}")
    keys, now = store.for_tenant(""), store.ids.now()
    while True:
        key_id = _letters(store.ids.random(16))
        key = f"hf_{key_id}_{base64.urlsafe_b64encode(store.ids.random(32)).decode().rstrip('=')}"
        info = KeyInfo(
            id=key_id,
            digest=digest_of(key),
            tenant=tenant,
            user=user,
            role=role,
            name=name,
            created_at=now,
            expires_at=None if expires_days is None else now + int(expires_days * _DAY),
        )
        if keys.put_slip(KEYS, key_id, _written(info), only_new=True) is None:
            return key, info


def find_key(store: Store, key: str) -> KeyInfo | None:
    """The key that was presented, if it is one of ours, whole. It may be expired or revoked."""
    match = _KEY.fullmatch(key)
    kept = store.for_tenant("").slip(KEYS, match.group(1)) if match else None
    if match is None or kept is None:
        return None
    info = _read(match.group(1), kept)
    return info if hmac.compare_digest(info.digest, digest_of(key)) else None


def list_keys(store: Store) -> list[KeyInfo]:
    """All keys, of every tenant, the oldest first."""
    keys = store.for_tenant("")
    uses = {key_id: codec.decode(value)["at"] for key_id, value in _all(keys, USES)}
    found = [_read(key_id, value, last_used=uses.get(key_id)) for key_id, value in _all(keys, KEYS)]
    return sorted(found, key=lambda info: (info.created_at, info.id))


def revoke_key(store: Store, key_id: str) -> bool:
    """End a key. True if there is such a key; one that was revoked stays so since then."""
    keys = store.for_tenant("")
    kept = keys.slip(KEYS, key_id)
    if kept is None:
        return False
    facts = codec.decode(kept)
    if facts["revoked_at"] is None:
        keys.put_slip(KEYS, key_id, codec.encode(facts | {"revoked_at": store.ids.now()}))
    return True


def note_use(store: Store, key_id: str, at: int) -> None:
    """Remember when a key was used."""
    store.for_tenant("").put_slip(USES, key_id, codec.encode({"at": at}))


def digest_of(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _all(store: Store, space: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while page := store.slips(space, after=found[-1][0] if found else None):
        found += page
    return found


def _written(info: KeyInfo) -> bytes:
    facts = asdict(info)
    del facts["id"], facts["last_used"]
    return codec.encode(facts)


def _read(key_id: str, value: bytes, last_used: int | None = None) -> KeyInfo:
    return KeyInfo(id=key_id, last_used=last_used, **codec.decode(value))


def _letters(random: bytes) -> str:
    """Eight letters and digits: a public part that can be selected with a double click."""
    number = int.from_bytes(random, "big")
    letters = []
    for _ in range(8):
        number, rest = divmod(number, 36)
        letters.append("0123456789abcdefghijklmnopqrstuvwxyz"[rest])
    return "".join(letters)
