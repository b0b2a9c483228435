"""What a memory is, and what a service that finds memories does.

A memory is an event of a log: a text to keep, with a key, a kind, a confidence, an expiry and where it
came from. What is returned is a value; the log stays the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.errors import InvalidArgument, InvalidId
from holdfast.log import codec
from holdfast.log.identifiers import check_name, check_owner
from holdfast.log.times import to_datetime

if TYPE_CHECKING:
    from holdfast.memory.memory_log import MemoryLog
    from holdfast.stores.base import Log

MAX_TEXT = 16 << 10  # bytes of one memory: a statement, not a document
MAX_QUERY = 64 << 10
MAX_KIND = 64
MAX_LIMIT = 1000
Owner = tuple[str | None, str | None]  # user_id and app_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a memory came from: a session, and the events of it that say so."""

    session_id: str
    seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory, as it was when it was read. `score` says how well it fits a search, and means something only there."""

    key: str
    text: str
    kind: str = "fact"
    confidence: float = 1.0
    expires_at: datetime | None = None
    source: Source | None = None
    created_at: datetime
    updated_at: datetime
    score: float | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A memory that is to be kept, checked."""

    key: str
    text: str
    kind: str = "fact"
    confidence: float = 1.0
    expires_at: int | None = None  # microseconds
    source: dict[str, Any] | None = None  # as the event has it: session, uid, and the seqs by the log that holds them
    extras: Mapping[str, Any] = field(default_factory=dict)  # what the service keeps with the text

    def data(self, app: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"app": app, "key": self.key, "text": self.text, "kind": self.kind}
        found["confidence"] = self.confidence
        if self.expires_at is not None:
            found["expires_at"] = self.expires_at
        if self.source is not None:
            found["source"] = self.source
        return found | dict(self.extras)


class Hit(NamedTuple):
    """A memory that a search found: the event, how well it fits, and whether well enough to be put before a model."""

    seq: int
    score: float
    is_relevant: bool
    query_coverage: float = 0.0  # of what the query says in telling words, how much the memory has


class Service(Protocol):
    """How memories are found. It keeps nothing that the log does not have."""

    def describe(self) -> str:
        """What it goes by, in words for a person."""
        ...

    def extras(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What is kept with each of these texts, so that they can be found."""
        ...

    def ranked(self, shelf: MemoryLog, log: Log | None, live: Mapping[str, int], query: str) -> list[Hit]:
        """Of the living memories (key and event) those that fit the query, best first. Without a log there are none,
        and everything kept of an earlier one is dropped."""
        ...


def memory_from_data(data: Mapping[str, Any], at: int, score: float | None = None) -> Remembered:
    """The memory that an event of this moment brought."""
    expires, source = data.get("expires_at"), data.get("source")
    return Remembered(
        key=data["key"],
        text=data["text"],
        kind=data["kind"],
        confidence=data["confidence"],
        expires_at=None if expires is None else to_datetime(expires),
        source=None if source is None else Source(session_id=source["session"], seqs=source_seqs(source)),
        created_at=to_datetime(data.get("created", at)),
        updated_at=to_datetime(data.get("updated", at)),
        score=score,
    )


def searchable_text(data: Mapping[str, Any]) -> str:
    """What a memory is found by: its key is chosen to say something too."""
    return f"{data['key']} {data['text']}"


def source_seqs(source: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(sorted(seq for seqs in source["events"].values() for seq in seqs))


# -- what may be kept --------------------------------------------------------------------------------------------------


def check_key(key: object) -> str:
    """1 to 512 bytes on one line: a key is shown in prompts and stands in addresses."""
    found = check_name(key, "the key of a memory")
    if min(found) < " " or "\x7f" in found:
        raise InvalidId(f"the key of a memory, {key!r}, has a line end or a control character: leave it out")
    return found


def check_text(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(f"a memory is a text that says something, not {text!r}")
    codec.text_bytes(text, "a memory", MAX_TEXT)
    return text


def check_kind(kind: object) -> str:
    return check_name(kind, "the kind of a memory", MAX_KIND)


def check_confidence(confidence: object, what: str = "confidence") -> float:
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise InvalidArgument(f"{what}={confidence!r}: use a number from 0 (a guess) to 1 (certain)")
    return float(confidence)


def check_query(query: object) -> str:
    if not isinstance(query, str):
        raise InvalidArgument(f"search takes words, not {type(query).__name__}")
    codec.text_bytes(query, "a query", MAX_QUERY)
    return query


def check_expiry(expires: timedelta | float | datetime | None, now: int) -> int | None:
    """When a memory expires, in microseconds: after a span, after seconds, or at a moment."""
    if expires is None:
        return None
    if isinstance(expires, datetime):
        at = round((expires if expires.tzinfo else expires.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    elif isinstance(expires, timedelta):
        at = now + round(expires.total_seconds() * 1_000_000)
    elif isinstance(expires, int | float) and not isinstance(expires, bool) and abs(expires) < 1e12:
        at = now + round(expires * 1_000_000)
    else:
        raise InvalidArgument(f"expires={expires!r}: use a timedelta, a number of seconds, or a datetime")
    if not now < at:
        raise InvalidArgument(f"expires={expires!r} lies in the past: choose a later moment, or forget the memory")
    if at > _LAST:
        raise InvalidArgument(f"expires={expires!r} is later than any date: leave it out to keep the memory for good")
    return at


_LAST = round(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


def resolve_bound_owner(user_id: str, app_name: str | None, own_app: str | None) -> Owner:
    """The owner of a memory of app `own_app` that is bound to a user, and to `app_name` if that is given."""
    user, app = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
    if user is None:
        raise InvalidArgument("for_user needs a user_id: a memory that is not bound is of no user")
    return user, own_app if app is None else app


def check_taught_owner(session_id: str, owner: Owner, memory: Owner, *, shared: bool) -> None:
    """Raise InvalidArgument unless a memory of one owner may learn from a session of another.

    It may if both are the same, because then it finds what it learnt. A memory that is wider than the session (of no
    user, or of no app) may if the caller says `shared`. An erasure of the session looks in all of these places.
    """
    (user_id, app_name), (own_user, own_app) = owner, memory
    is_wider = own_user in (None, user_id) and own_app in (None, app_name)
    if memory == owner or (shared and is_wider):
        return
    fix = f"teach Memory(app_name={app_name!r})"
    if user_id is not None:
        app = "" if own_app == app_name else f", app_name={app_name!r}"
        fix = f"teach memory.for_user({user_id!r}{app})"
    if is_wider:
        fix = (
            f"which would not find it again: {fix}, or pass shared=True to keep it here, for every user of this memory"
        )
    elif user_id is None and own_user is not None:
        fix = f"open the session with user_id={own_user!r}, or teach a memory of no user"
    elif app_name is None and own_app is not None:
        fix = f"open the session with app_name={own_app!r}, or teach a memory of no app"
    raise InvalidArgument(
        f"session {session_id!r} belongs to {_format_owner(owner)}, this memory to {_format_owner(memory)}"
        f"{', ' if is_wider else ': '}{fix}"
    )


def _format_owner(owner: Owner) -> str:
    user_id, app_name = owner
    user = "no user" if user_id is None else f"user {user_id!r}"
    return user if app_name is None else f"{user} in app {app_name!r}"
