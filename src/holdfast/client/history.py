"""Reading and adding to the history of a session of a server: messages, events, documents, forks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.base import Remote, drop_none
from holdfast.client.parsers import parse_event, parse_messages
from holdfast.client.requests import Flow, get, post
from holdfast.errors import InvalidArgument, LimitExceeded, ViewChanged
from holdfast.log.arguments import check_limit
from holdfast.log.identifiers import check_id
from holdfast.log.messages import Message
from holdfast.session.export import FORMATS, read_jsonl
from holdfast.stores.signing_keys import PublicKeys

if TYPE_CHECKING:
    from holdfast.log.chain import Verification
    from holdfast.log.events import Event
    from holdfast.session.session import Comparison

R = TypeVar("R", bound=Remote)

PAGE = 1000  # the most that the server gives at once
TRIES = 20  # attempts to read a history that others change at the same time


# -- messages ----------------------------------------------------------------------------------------------------------


def messages(self: Remote) -> Flow[list[Message]]:
    """A copy of every visible message, oldest first."""
    return (yield from history(self, limit=None))


def history(self: Remote, limit: int | None = None, role: str | None = None) -> Flow[list[Message]]:
    """All messages, or the last `limit`, oldest first."""
    if limit is not None:
        check_limit(limit)
    if role is not None:
        Message(role)  # refuses an unknown one
    for _ in range(TRIES):
        found = yield from _read_pages(self, limit, role)
        if found is not None:
            return found
    raise ViewChanged


def _read_pages(self: Remote, limit: int | None, role: str | None) -> Flow[list[Message] | None]:
    """The history from its end, page by page; None if it was changed between two pages.

    Pages overlap by one message, so that a change shows.
    """
    found: list[Message] = []
    size = PAGE
    while True:
        overlap = min(1, len(found))
        left = size if limit is None else min(size, limit - len(found) + overlap)
        try:
            page = parse_messages(
                (yield get(self._path("history"), limit=left, role=role, skip=max(0, len(found) - 1) or None))
            )
        except LimitExceeded:  # these messages carry large files
            if size == 1:
                raise
            size = max(1, size // 4)
            continue
        if overlap:
            if not page or page[-1].seq != found[0].seq:
                return None
            page = page[:-1]
        found = page + found
        if len(page) + overlap < left or (limit is not None and len(found) >= limit):
            return found


def length(self: Remote) -> Flow[int]:
    """How many messages are visible."""
    found: int = (yield get(self._path()))["length"]
    return found


def add_message(self: Remote, message: Message | Mapping[str, Any], *, once: str | None = None) -> Flow[int]:
    """Record one message; returns its number. With `once`, the same key stores it only once."""
    return (yield from add_messages(self, [message], once=once))


def add_messages(
    self: Remote, messages: Iterable[Message | Mapping[str, Any]], *, once: str | None = None
) -> Flow[int]:
    """Record messages in one commit; returns the number of the last event of the log."""
    if isinstance(messages, Message | Mapping | str):
        raise InvalidArgument("add_messages takes a list of messages; for one message use add_message")
    found = [Message.of(message).to_dict() for message in messages]
    if not found:
        return (yield get(self._path()))["head"]  # type: ignore[no-any-return]
    key = None if once is None else sha256(once.encode()).hexdigest()  # any text may be a key, a header is plain
    answer = yield post(self._path("messages"), {"messages": found}, key=key)
    return answer["seq"]  # type: ignore[no-any-return]


def send_message(self: Remote, message: Message | Mapping[str, Any], *, once: str | None = None) -> Flow[int]:
    """The same as `add_message`: record a message, without asking a model."""
    return (yield from add_messages(self, [message], once=once))


def clear(self: Remote, *, actor: str | None = None) -> Flow[None]:
    """Empty the messages and temp; system, state and facts stay, and so does the log."""
    yield post(self._path("clear"), drop_none(actor=actor))
    self._temp.clear()


def search(self: Remote, query: str, limit: int = 20) -> Flow[list[Message]]:
    """The last `limit` messages that hold every word of the query, oldest first."""
    check_limit(limit)
    if not isinstance(query, str):
        raise InvalidArgument(f"search takes words, not {type(query).__name__}")
    return parse_messages((yield get(self._path("search"), q=query, limit=limit)))


def rewind(self: Remote, to: int, *, actor: str | None = None) -> Flow[None]:
    """Make messages and session state what they were after event `to`. What is undone stays in the log."""
    if isinstance(to, bool) or not isinstance(to, int) or to < 1:
        head = (yield get(self._path()))["head"]
        raise InvalidArgument(f"{to!r} is not the number of an event of session {self.id!r}: use 1 to {head}")
    yield post(self._path("rewind"), drop_none(to=to, actor=actor))


# -- the log -----------------------------------------------------------------------------------------------------------


def events(
    self: Remote,
    since: str | date | datetime | None = None,
    limit: int | None = 100,
    types: str | Sequence[str] | None = None,
    after: int | None = None,
) -> Flow[list[Event]]:
    """The last `limit` events, oldest first; with `after`, the next ones after that number."""
    if limit is not None:
        check_limit(limit)
    if after is not None and (isinstance(after, bool) or not isinstance(after, int) or after < 0):
        raise InvalidArgument(f"after={after!r}: use the number of the last event you have, or 0")
    if limit == 0:
        return []
    query: dict[str, Any] = {"since": _format_since(since), "types": types_of(types)}
    if after is None and limit is not None and limit <= PAGE:
        with suppress(LimitExceeded):  # these events are large: they are read page by page
            return [parse_event(each) for each in (yield get(self._path("events"), limit=limit, **query))["events"]]
    found: list[Event] = []
    at: int | None = after or 0
    while at is not None and (limit is None or after is None or len(found) < limit):
        left = PAGE if limit is None or after is None else min(PAGE, limit - len(found))
        page = yield get(self._path("events"), after=at, limit=left, **query)
        found += [parse_event(each) for each in page["events"]]
        at = page["next"]
    return found if after is not None or limit is None else found[-limit:]


def types_of(types: str | Sequence[str] | None) -> list[str] | None:
    """Event types as the server takes them."""
    return [types] if isinstance(types, str) else list(types or ()) or None


def _format_since(since: object) -> str | None:
    if since is None or isinstance(since, str):
        return since
    if isinstance(since, date):  # and so is a datetime
        return since.isoformat()
    raise InvalidArgument(f"since= takes a date, a datetime or an ISO string, not {type(since).__name__}")


def verify(self: Remote, public_key: str | Iterable[str] | None = None) -> Flow[Verification]:
    """Check the hash chain of the whole log; false, and naming the first bad event, if anything was altered.

    With `public_key`, one or several, the export of the session is checked here, and must be signed with one of them:
    the verdict is then not the server's.
    """
    from holdfast.log.chain import Verification

    if public_key is not None:
        return read_jsonl((yield from export(self))).verify(PublicKeys.of(public_key))
    found = yield get(self._path("verify"))
    return Verification(**{name: found[name] for name in Verification.__dataclass_fields__ if name in found})


def export(self: Remote, format: str = "jsonl") -> Flow[str]:
    """The log as JSON lines (everything, verifiable without a database), or the messages as Markdown or HTML."""
    if format not in FORMATS:
        raise InvalidArgument(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    found: str = yield get(self._path("export"), is_text=True, format=format)
    return found


def to_dict(self: Remote) -> Flow[dict[str, Any]]:
    """The view as JSON, with a schema version: for `json.dump`, and for any store of documents."""
    found: dict[str, Any] = yield get(self._path("document"))
    return found


# -- forks -------------------------------------------------------------------------------------------------------------


def fork(self: R, session_id: str | None = None, at: int | None = None) -> Flow[R]:
    """A new session that shares the past up to `at` (now, by default) and goes its own way. Copies nothing."""
    if session_id is not None:
        check_id(session_id)
    return self._other_session((yield post(self._path("fork"), drop_none(id=session_id, at=at))), self.agent)


def forks(self: R) -> Flow[list[R]]:
    """The sessions that were forked from this one, oldest first."""
    return [self._other_session(each) for each in (yield get(self._path("forks")))["sessions"]]


def parent(self: Remote) -> Flow[str | None]:
    """The id of the session this one was forked from; None if there is none, or it was deleted."""
    found: str | None = (yield get(self._path()))["parent"]
    return found


def compare(self: Remote, other: Remote) -> Flow[Comparison]:
    """The messages both share, then those of each side."""
    from holdfast.session.session import Comparison

    if not isinstance(other, Remote):
        raise InvalidArgument(f"compare takes another session of the server, not {type(other).__name__}")
    query: dict[str, Any] = {"with": other.id}
    found = yield get(self._path("compare"), **query)
    return Comparison(**{side: parse_messages(found, side) for side in ("common", "mine", "theirs")})


def brief(self: Remote) -> Flow[str]:
    """What a successor needs, as Markdown: facts by kind, open work, last decisions, last words, the git head of
    `work_dir`."""
    found: str = (yield get(self._path("brief")))["brief"]
    return found


def successor(self: R, session_id: str | None = None) -> Flow[R]:
    """A new session for the same task: it begins with the brief, and has this one's facts, system prompt, owner,
    metadata, work_dir, budget and retention. The old session stays as it is."""
    if session_id is not None:
        check_id(session_id)
    return self._other_session((yield post(self._path("successor"), drop_none(id=session_id))), self.agent)
