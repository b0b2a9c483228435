"""The session: what a user holds. Thin: every method reads a store or appends to a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.concurrency import twin
from holdfast.errors import Conflict, InvalidArgument, LimitExceeded, SessionExists, SessionMismatch
from holdfast.log import codec
from holdfast.log.events import Draft, Event, to_datetime
from holdfast.log.identifiers import checked_id, checked_name, checked_owner
from holdfast.log.messages import Message
from holdfast.log.search_words import words
from holdfast.log.view import MOVES, View, cut, view_of
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention
from holdfast.session.compliance import Keeping
from holdfast.session.context import Contexts
from holdfast.session.export import Archive
from holdfast.session.facts import Facts
from holdfast.session.pruning import Pruning
from holdfast.session.state import Scopes
from holdfast.session.successor import Handover
from holdfast.session.turns import Turns
from holdfast.stores.base import MAX_SEQ, Log, SessionStore, Store
from holdfast.stores.documents import document_of, message_draft, message_of, messages_of, restore
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.agent_base import Askable

MAX_PAGE = 10_000
MAX_LIMIT = 2**31 - 1
_list = list  # inside the class, `list` is the method that lists sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sessions side by side: what they share, then what each has of its own."""

    common: list[Message]
    mine: list[Message]
    theirs: list[Message]


class Session(Scopes, Archive, Turns, Pruning, Keeping, Handover, Contexts):
    """A durable conversation: messages, state, facts and metadata in one numbered log.

    An id that exists is opened, another one is created; without an id a new one is made.

        session = Session(id="user-123", store=SQLiteStore("sessions.db"))
        session.add_message(Message.user("My name is Alice"))
    """

    def __init__(
        self,
        id: str | None = None,
        *,
        session_id: str | None = None,
        agent: Askable | None = None,
        store: Store | SessionStore | str | None = None,
        system: str | None = None,
        messages: Iterable[Message | Mapping[str, Any]] | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        title: str | None = None,
        work_dir: str | Path | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        retention: Retention | Mapping[str, Any] | None = None,
    ) -> None:
        if id is not None and session_id is not None and id != session_id:
            raise InvalidArgument(f"id={id!r} and session_id={session_id!r} are the same thing: give one of them")
        if store is None and agent is not None:
            store = agent.store
        self.agent = agent
        self._begin_empty()
        self.store = open_store(store)
        chosen = id if id is not None else session_id
        name = self.store.ids.new() if chosen is None else checked_id(chosen)
        fields = self._fields(system=system, metadata=metadata, title=title, work_dir=work_dir)
        if budget is not None:
            fields["budget"] = Budget.of(budget).to_dict()
        kept = None if retention is None else Retention.of(retention)
        first = [
            *[Draft(type="state.set", data={"name": key, "value": value}) for key, value in _merged(state).items()],
            *[message_draft(Message.of(message), self.store.limits) for message in messages or ()],
        ]
        user_id, app_name = checked_owner(user_id, "user_id"), checked_owner(app_name, "app_name")
        self._log = self._open_or_create(name, fields, first, user_id, app_name, kept)
        if kept is not None and kept.auto_prune:
            self._prune_if_asked()

    def _open_or_create(
        self,
        name: str,
        fields: dict[str, Any],
        first: _list[Draft],
        user_id: str | None,
        app_name: str | None,
        kept: Retention | None,
    ) -> Log:
        log = self.store.find("session", name)
        if log is None:
            created = [Draft(type="session.created", data=fields)]
            if kept is not None:
                created.append(Draft(type="retention.set", data=kept.to_dict()))
            try:
                return self.store.create("session", name, [*created, *first], user_id=user_id, app_name=app_name)
            except SessionExists:  # another process was faster
                log = self.store.require("session", name)
        for field, asked, known in (("user_id", user_id, log.user_id), ("app_name", app_name, log.app_name)):
            if asked is not None and asked != known:
                raise SessionMismatch(name, field)
        if first:
            self._fill_empty(log, first)
        changed = {field: value for field, value in fields.items() if self.store.value(log, field) != value}
        if changed:
            self.store.append(log, [Draft(type="session.changed", data=changed)])
        if kept is not None and self.store.value(log, "retention") != kept.to_dict():
            self.store.append(log, [Draft(type="retention.set", data=kept.to_dict())])
        return log

    def _fill_empty(self, log: Log, first: _list[Draft]) -> None:
        head = self.store.head(log)
        if messages_of(self.store, log, head, limit=1) or self.store.values(log, "state/"):
            raise InvalidArgument(
                f"session {log.id!r} is not empty: open it without messages= and state=, or choose another id"
            )
        self.store.append(log, first, expected=head.head)

    def _fields(
        self,
        *,
        system: str | None,
        metadata: Mapping[str, Any] | None,
        title: str | None,
        work_dir: str | Path | None,
    ) -> dict[str, Any]:
        limits = self.store.limits
        fields: dict[str, Any] = {}
        if system is not None:
            codec.text_bytes(system, "system", limits.text)
            fields["system"] = system
        if title is not None:
            codec.text_bytes(title, "title", limits.text)
            fields["title"] = title
        if work_dir is not None:
            fields["work_dir"] = str(work_dir)
        if metadata is not None:
            if not isinstance(metadata, Mapping):
                raise InvalidArgument(f"metadata is a dict, not {type(metadata).__name__}")
            fields["metadata"] = dict(metadata)
            size = len(codec.encode(fields["metadata"]))
            if size > limits.metadata:
                raise LimitExceeded("metadata", size=size, limit=limits.metadata, hint="keep large things in state")
        return fields

    @classmethod
    def _of(cls, store: Store, log: Log, agent: Askable | None = None) -> Self:
        """A session object on a log that is known to be there."""
        session = cls.__new__(cls)
        session.agent, session.store, session._log = agent, store, log
        session._begin_empty()
        return session

    @classmethod
    def open(cls, id: str, *, store: Store | SessionStore | str | None = None, agent: Askable | None = None) -> Self:
        """A session that exists; SessionNotFound if it does not."""
        found = open_store(store if store is not None or agent is None else agent.store)
        return cls._of(found, found.require("session", checked_id(id)), agent)

    @classmethod
    def list(
        cls,
        *,
        store: Store | SessionStore | str | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> _list[Self]:
        """Sessions, newest first; `after` is the id of the last one of the page before. Reads no event."""
        _checked_limit(limit)
        if status is not None and status not in MOVES:
            raise InvalidArgument(f"unknown status {status!r}: use one of {', '.join(MOVES)}")
        user_id, app_name = checked_owner(user_id, "user_id"), checked_owner(app_name, "app_name")
        after = None if after is None else checked_id(after, "after")
        found = open_store(store)
        page = found.sessions(user_id=user_id, app_name=app_name, status=status, limit=limit, after=after)
        return [cls._of(found, info.log) for info in page]

    # -- who it is -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._log.id

    @property
    def session_id(self) -> str:
        return self._log.id

    @property
    def user_id(self) -> str | None:
        return self._log.user_id

    @property
    def app_name(self) -> str | None:
        return self._log.app_name

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._log.created_at)

    @property
    def updated_at(self) -> datetime:
        return to_datetime(self.store.info(self._log).updated_at)

    @property
    def status(self) -> str:
        """open, active, waiting, paused, closed or archived."""
        return self._view().status

    @property
    def head(self) -> int:
        """The number of the last event."""
        return self.store.head(self._log).head

    @property
    def system(self) -> str | None:
        found: str | None = self.store.value(self._log, "system")
        return found

    @property
    def title(self) -> str | None:
        return self.store.info(self._log).title

    @title.setter
    def title(self, value: str | None) -> None:
        fields = (
            {"title": None} if value is None else self._fields(title=value, system=None, metadata=None, work_dir=None)
        )
        self.store.append(self._log, [Draft(type="session.changed", data=fields)])

    @property
    def metadata(self) -> dict[str, Any]:
        return self.store.info(self._log).metadata

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        fields = self._fields(metadata=value, system=None, title=None, work_dir=None)
        self.store.append(self._log, [Draft(type="session.changed", data=fields)])

    @property
    def work_dir(self) -> Path | None:
        found = self.store.info(self._log).work_dir
        return None if found is None else Path(found)

    @property
    def active_agent(self) -> str | None:
        """Who has the conversation: the agent that it was handed to, or that a router keeps it with. Set it to give the
        conversation to somebody, or None to begin where `agent=` says."""
        return self._view().active

    @active_agent.setter
    def active_agent(self, name: str | None) -> None:
        agent = None if name is None else checked_name(name, "the name of an agent")
        self.store.append(self._log, [Draft(type="agent.assigned", data={"agent": agent})])

    @property
    def facts(self) -> Facts:
        return Facts(self.store, self._log)

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, store={self.store!r})"

    def _view(self) -> View:
        return view_of(self.store.head(self._log).view)

    # -- history ---------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> _list[Message]:
        """A copy of every visible message, oldest first."""
        return messages_of(self.store, self._log, self.store.head(self._log))

    def __len__(self) -> int:
        head = self.store.head(self._log)
        return self.store.count(self._log, cut(view_of(head.view).visible, head.head))

    def __bool__(self) -> bool:
        return True  # an empty session is still a session

    def history(self, limit: int | None = 10, role: str | None = None) -> _list[Message]:
        """The last `limit` messages, oldest first; None for all of them."""
        if limit is not None:
            _checked_limit(limit)
        if role is not None:
            Message(role)  # refuses an unknown one
        return messages_of(self.store, self._log, self.store.head(self._log), limit=limit, role=role)

    def add_message(self, message: Message | Mapping[str, Any], *, once: str | None = None) -> int:
        """Record one message; returns its number. With `once`, the same key stores it only once."""
        return self.add_messages([message], once=once)

    def add_messages(self, messages: Iterable[Message | Mapping[str, Any]], *, once: str | None = None) -> int:
        """Record messages in one commit; returns the number of the last event of the log."""
        if isinstance(messages, (Message, Mapping, str)):
            raise InvalidArgument("add_messages takes a list of messages; for one message use add_message")
        limits = self.store.limits
        drafts = [message_draft(Message.of(message), limits) for message in messages]
        if not drafts:
            return self.head
        done = self.store.append(self._log, drafts, once=once)
        if done.retained:
            self._prune_if_asked()
        return done.last

    def send_message(self, message: Message | Mapping[str, Any], *, once: str | None = None) -> int:
        """The same as `add_message`: record a message, without asking a model."""
        return self.add_messages([message], once=once)

    def clear(self, *, actor: str | None = None) -> None:
        """Empty the messages and temp; system, state and facts stay, and so does the log."""
        self.store.append(self._log, [Draft(type="view.cleared", actor=actor)])
        self._temp.clear()

    def search(self, query: str, limit: int = 20) -> _list[Message]:
        """The last `limit` messages that hold every word of the query, oldest first."""
        _checked_limit(limit)
        if not isinstance(query, str):
            raise InvalidArgument(f"search takes words, not {type(query).__name__}")
        wanted = _list(dict.fromkeys(words(query)))
        if not wanted or not limit:
            return []
        seqs = self.store.search(self._log, wanted, self._view().visible, limit)
        return [message_of(self.store, self._log, row) for seq in seqs for row in self.store.read(self._log, seq, seq)]

    def rewind(self, to: int, *, actor: str | None = None) -> None:
        """Make messages and session state what they were after event `to`. What is undone stays in the log."""
        while True:
            head = self.store.head(self._log).head
            turn = self.store.view(self._log, self._checked_seq(to, head)).turn
            to = to if turn is None else turn.first - 1  # a point inside a turn is the point before it
            view = self.store.view(self._log, to)
            now, then = self.store.refs(self._log, "state/", head), self.store.refs(self._log, "state/", to)
            changed = {name.removeprefix("state/"): then.get(name) for name in now if now[name] != then.get(name)}
            data: dict[str, Any] = {"to": to, "ranges": cut(view.visible, to), "state": changed}
            if view.active is not None:
                data["active"] = view.active
            try:
                self.store.append(self._log, [Draft(type="view.rewound", data=data, actor=actor)], expected=head)
                return
            except Conflict:
                continue

    def _checked_seq(self, at: object, head: int) -> int:
        if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= head:
            raise InvalidArgument(f"{at!r} is not the number of an event of session {self.id!r}: use 1 to {head}")
        return at

    def _listed_fields(self, at: int, is_now: bool) -> dict[str, Any]:
        """Title, metadata and work_dir as they were at a point; for now, they stand in the list of sessions."""
        if is_now:
            info = self.store.info(self._log)
            return {"title": info.title, "metadata": info.metadata, "work_dir": info.work_dir}
        return {name: self.store.value(self._log, name, at=at) for name in ("title", "metadata", "work_dir")}

    # -- forks -----------------------------------------------------------------------------------------------------

    def fork(self, session_id: str | None = None, at: int | None = None) -> Self:
        """A new session that shares the past up to `at` (now, by default) and goes its own way. Copies nothing."""
        name = self.store.ids.new() if session_id is None else checked_id(session_id)
        if at is not None:
            self._checked_seq(at, self.head)
        point = self.store.fork_point(self._log, at)
        data: dict[str, Any] = {"parent": self.id, "at": point.at}
        for field, value in self._listed_fields(point.at, point.is_head).items():
            if value is not None and value != {}:
                data[field] = value
        drafts = [Draft(type="session.forked", data=data)]
        if point.view.retention:  # a copy of the past is kept as the past is
            drafts.append(Draft(type="retention.set", data=self.store.event(self._log, point.view.retention).data))
        log = self.store.create(
            "session",
            name,
            drafts,
            user_id=self.user_id,
            app_name=self.app_name,
            fork=point,
        )
        return self._of(self.store, log, self.agent)

    @property
    def parent(self) -> str | None:
        """The id of the session this one was forked from; None if there is none, or it was deleted."""
        return None if self._log.parent is None else self.store.id_of(self._log.parent)

    def forks(self) -> _list[Self]:
        """The sessions that were forked from this one, oldest first."""
        return [
            self._of(self.store, info.log) for info in self.store.sessions(parent=self._log.number, limit=MAX_PAGE)
        ][::-1]

    def compare(self, other: Session) -> Comparison:
        """The messages both share, then those of each side."""
        if not isinstance(other, Session):
            raise InvalidArgument(f"compare takes another Session, not {type(other).__name__}")
        mine, theirs = self.messages, other.messages
        common = 0
        for one, two in zip_longest(mine, theirs):
            if one is None or two is None or one != two or one.seq != two.seq:
                break
            common += 1
        return Comparison(common=mine[:common], mine=mine[common:], theirs=theirs[common:])

    # -- lifecycle -------------------------------------------------------------------------------------------------

    def pause(self, reason: str | None = None, *, actor: str | None = None) -> None:
        self._move("session.paused", reason, actor)

    def close(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """End the session and drop temp; everything stays readable, and `reopen` brings it back."""
        self._move("session.closed", reason, actor)
        self._temp.clear()

    def archive(self, reason: str | None = None, *, actor: str | None = None) -> None:
        self._move("session.archived", reason, actor)

    def reopen(self, reason: str | None = None, *, actor: str | None = None) -> None:
        self._move("session.reopened", reason, actor)

    def _move(self, type: str, reason: str | None, actor: str | None) -> None:
        # Whether the move is legal is decided by the fold, inside the append: nobody can move in between.
        data = {} if reason is None else {"reason": checked_name(reason, "a reason", self.store.limits.metadata)}
        self.store.append(self._log, [Draft(type=type, data=data, actor=actor)])

    # -- the log ---------------------------------------------------------------------------------------------------

    def events(
        self,
        since: str | date | datetime | None = None,
        limit: int | None = 100,
        types: str | Sequence[str] | None = None,
        after: int | None = None,
    ) -> _list[Event]:
        """The last `limit` events, oldest first; with `after`, the next ones after that number."""
        if limit is not None:
            _checked_limit(limit)
        wanted = [types] if isinstance(types, str) else _list(types or ())
        start = None if since is None else _microseconds(since)
        if after is not None:
            if isinstance(after, bool) or not isinstance(after, int) or after < 0:
                raise InvalidArgument(f"after={after!r}: use the number of the last event you have, or 0")
            rows = self.store.read(self._log, min(after, MAX_SEQ) + 1, limit=limit, types=wanted, since=start)
        else:
            rows = self.store.read(self._log, limit=limit, types=wanted, since=start, reverse=True)[::-1]
        return [Event(row) for row in rows]

    # -- documents -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON, with a schema version: for `json.dump`, and for any store of documents."""
        return document_of(self.store, self._log)

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], agent: Askable | None = None, *, store: Store | SessionStore | str | None = None
    ) -> Self:
        """A session from a document: in a private memory, or in `store`, where it follows `store.save`."""
        from holdfast.stores.memory import MemoryStore

        found = MemoryStore() if store is None else open_store(store)
        name = data.get("id") if isinstance(data, dict) else None
        return cls._of(found, restore(found, checked_id(name, "'id' of the document"), data), agent)

    # -- the awaited twins -----------------------------------------------------------------------------------------

    archive_async = twin(archive)
    close_async = twin(close)
    events_async = twin(events)
    export_async = twin(Archive.export)
    history_async = twin(history)
    pause_async = twin(pause)
    reopen_async = twin(reopen)
    search_async = twin(search)
    send_message_async = twin(send_message)
    verify_async = twin(Archive.verify)


def _checked_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidArgument(f"limit={limit!r}: use a whole number")
    if limit < 0:
        raise InvalidArgument(f"limit={limit} is negative: use 0 or more")
    if limit > MAX_LIMIT:
        raise InvalidArgument(f"limit={limit} is more than {MAX_LIMIT}: use a smaller one, or None where it is allowed")


def _merged(state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """One dict from a dict or several, later ones winning."""
    if state is None:
        return {}
    found: dict[str, Any] = {}
    for one in [state] if isinstance(state, Mapping) else state:
        if not isinstance(one, Mapping):
            raise InvalidArgument(f"state= is a dict or a list of dicts, not {type(one).__name__}")
        found |= one
    for name in found:
        checked_name(name, "a state name")
    return found


def _microseconds(since: object) -> int:
    if isinstance(since, str):
        try:
            since = datetime.fromisoformat(since)
        except ValueError as error:
            raise InvalidArgument(f"since={since!r} is no ISO date or time, such as '2024-01-31'") from error
    if isinstance(since, date) and not isinstance(since, datetime):
        since = datetime(since.year, since.month, since.day)
    if not isinstance(since, datetime):
        raise InvalidArgument(f"since= takes a date, a datetime or an ISO string, not {type(since).__name__}")
    if since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    return round(since.timestamp() * 1_000_000)
