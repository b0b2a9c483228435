"""`Session`: a durable conversation. It keeps no data of its own: every method reads a store or appends to a log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from holdfast.concurrency import class_twin, off_thread, property_twin, twin
from holdfast.errors import (
    InvalidArgument,
    SessionExists,
    SessionMismatch,
)
from holdfast.log.arguments import check_limit, merge_state, suggest_keywords, suggest_name
from holdfast.log.events import Draft, Event
from holdfast.log.identifiers import check_id, check_owner
from holdfast.log.messages import Message
from holdfast.log.times import to_datetime
from holdfast.log.view import MOVES, View, decode_view
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention
from holdfast.session.approvals import ApprovalMethods
from holdfast.session.compliance import ComplianceMethods
from holdfast.session.context import ContextMethods
from holdfast.session.export import ExportMethods
from holdfast.session.facts import Facts
from holdfast.session.fields import CHANGEABLE, FieldMethods
from holdfast.session.history import HistoryMethods
from holdfast.session.lifecycle import LifecycleMethods
from holdfast.session.pruning import PruningMethods
from holdfast.session.recovery import RecoveryMethods
from holdfast.session.state import StateMethods
from holdfast.session.successor import SuccessorMethods
from holdfast.stores.base import MAX_SEQ, Log, SessionStore, Store
from holdfast.stores.documents import document_of, restore_document
from holdfast.stores.messages import message_draft, messages_of
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent

MAX_PAGE = 10_000
OPENING = "Session.open(id) opens a session that exists, Session(id) also creates it"
_OWN_ATTRIBUTES = {"agent", "store", "log", "cache"}
_list = list  # inside the class, `list` is the method that lists sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sessions compared, message by message."""

    common: list[Message]  # the messages at the start that both sessions share
    mine: list[Message]  # the later messages of this session
    theirs: list[Message]  # the later messages of the other session


class _SessionType(type):
    """The class of `Session`: it knows what other frameworks call `open`, and says so."""

    if not TYPE_CHECKING:  # a type checker must not take every name for an attribute

        def __getattr__(cls, name: str) -> NoReturn:
            advice = f": {OPENING}" if name in ("get", "load") else ""
            text = f"type object {cls.__name__!r} has no attribute {name!r}{advice}"
            raise AttributeError(text, name=name, obj=cls)


class Session(
    FieldMethods,
    LifecycleMethods,
    HistoryMethods,
    StateMethods,
    ExportMethods,
    RecoveryMethods,
    ApprovalMethods,
    PruningMethods,
    ComplianceMethods,
    SuccessorMethods,
    ContextMethods,
    metaclass=_SessionType,
):
    """A durable conversation: messages, state, facts and metadata in one numbered log.

    `Session(id)` opens the session with this id, or creates it; without an id it creates a session with a new one.

        session = Session(id="user-123", store=SQLiteStore("sessions.db"))
        session.add_message(Message.user("My name is Alice"))
    """

    @suggest_keywords
    def __init__(
        self,
        id: str | None = None,
        *,
        session_id: str | None = None,
        agent: BaseAgent | None = None,
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
        self._init_caches()
        self.store = open_store(store)
        chosen = id if id is not None else session_id
        name = self.store.clock.new_id() if chosen is None else check_id(chosen)
        fields = self._build_fields(system=system, metadata=metadata, title=title, work_dir=work_dir)
        if budget is not None:
            fields["budget"] = Budget.of(budget).to_dict()
        kept = None if retention is None else Retention.of(retention)
        first = [
            *[Draft(type="state.set", data={"name": key, "value": value}) for key, value in merge_state(state).items()],
            *[message_draft(Message.of(message), self.store.limits) for message in messages or ()],
        ]
        user_id, app_name = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
        self.log = self._open_or_create(name, fields, first, user_id, app_name, kept)
        if kept is not None and kept.auto_prune:
            self.prune_if_due()

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - the value of any attribute
        if name[:1] != "_" and name not in _OWN_ATTRIBUTES and not hasattr(type(self), name):
            raise AttributeError(f"a Session has no attribute {name!r}: {suggest_name(name, [*CHANGEABLE, 'agent'])}")
        super().__setattr__(name, value)

    def _open_or_create(
        self,
        name: str,
        fields: dict[str, Any],
        first: _list[Draft],
        user_id: str | None,
        app_name: str | None,
        kept: Retention | None,
    ) -> Log:
        """Return the log of the session; create it if there is none, else record the fields that differ.

        Raises SessionMismatch if the session belongs to another user or app.
        """
        log = self.store.find("session", name)
        if log is None:
            try:
                return self._create_log(name, fields, first, user_id, app_name, kept)
            except SessionExists:  # another process has created it since `find`
                log = self.store.require("session", name)
        for field, given, known in (("user_id", user_id, log.user_id), ("app_name", app_name, log.app_name)):
            if given is not None and given != known:
                raise SessionMismatch(name, field)
        if first:
            self._append_initial(log, first)
        changed = {field: value for field, value in fields.items() if self.store.value(log, field) != value}
        if changed:
            self.store.append(log, [Draft(type="session.changed", data=changed)])
        if kept is not None and self.store.value(log, "retention") != kept.to_dict():
            self.store.append(log, [Draft(type="retention.set", data=kept.to_dict())])
        return log

    def _create_log(
        self,
        name: str,
        fields: dict[str, Any],
        first: _list[Draft],
        user_id: str | None,
        app_name: str | None,
        kept: Retention | None,
    ) -> Log:
        """Create the log of this session; raise SessionExists if the id is taken."""
        created = [Draft(type="session.created", data=fields)]
        if kept is not None:
            created.append(Draft(type="retention.set", data=kept.to_dict()))
        return self.store.create("session", name, [*created, *first], user_id=user_id, app_name=app_name)

    def _append_initial(self, log: Log, first: _list[Draft]) -> None:
        """Append the messages and state of the constructor. Raises InvalidArgument if the session has any already."""
        head = self.store.head(log)
        if messages_of(self.store, log, head, limit=1) or self.store.values(log, "state/"):
            raise InvalidArgument(
                f"session {log.id!r} is not empty: open it without messages= and state=, or choose another id"
            )
        self.store.append(log, first, expected=head.head)

    @classmethod
    def on_log(cls, store: Store, log: Log, agent: BaseAgent | None = None) -> Self:
        """Return a session object for a log that exists; reads nothing."""
        session = cls.__new__(cls)
        session.agent, session.store, session.log = agent, store, log
        session._init_caches()
        return session

    @classmethod
    def open(cls, id: str, *, store: Store | SessionStore | str | None = None, agent: BaseAgent | None = None) -> Self:
        """Open an existing session. Raises SessionNotFound if there is none with this id."""
        found = open_store(store if store is not None or agent is None else agent.store)
        return cls.on_log(found, found.require("session", check_id(id)), agent)

    @classmethod
    def list(
        cls,
        *,
        store: Store | SessionStore | str | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | Session | None = None,
    ) -> _list[Self]:
        """Return one page of sessions, newest first; `after` is the last session of the page before, or its id.

        That session may have been deleted since; of a session whose id was chosen, give the object then. Reads no
        event, so the length of the sessions does not matter.
        """
        check_limit(limit)
        if status is not None and status not in MOVES:
            raise InvalidArgument(f"unknown status {status!r}: use one of {', '.join(MOVES)}")
        user_id, app_name = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
        last = after.log if isinstance(after, Session) else None if after is None else check_id(after, "after")
        found = open_store(store)
        page = found.sessions(user_id=user_id, app_name=app_name, status=status, limit=limit, after=last)
        return [cls.on_log(found, info.log) for info in page]

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.log.id

    @property
    def session_id(self) -> str:
        return self.log.id

    @property
    def user_id(self) -> str | None:
        return self.log.user_id

    @property
    def app_name(self) -> str | None:
        return self.log.app_name

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.log.created_at)

    @property
    def updated_at(self) -> datetime:
        return to_datetime(self.store.info(self.log).updated_at)

    @property
    def head(self) -> int:
        """The number of the last event."""
        return self.store.head(self.log).head

    @property
    def facts(self) -> Facts:
        return Facts(self.store, self.log)

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, store={self.store!r})"

    def _view(self) -> View:
        return decode_view(self.store.head(self.log).view)

    # -- forks -----------------------------------------------------------------------------------------------------

    def fork(self, session_id: str | None = None, at: int | None = None) -> Self:
        """Create a session that shares the events up to `at` (default: all) and continues alone. Copies nothing."""
        name = self.store.clock.new_id() if session_id is None else check_id(session_id)
        if at is not None:
            self._check_seq(at, self.head)
        point = self.store.fork_point(self.log, at)
        data: dict[str, Any] = {"parent": self.id, "at": point.at}
        for field, value in self._fields_at(point.at, point.is_head).items():
            if value is not None and value != {}:
                data[field] = value
        unverified = min((point.view if point.is_head else self._view()).unverified, point.at)
        if unverified > point.view.unverified:  # the fork is inside the import, before the event that says so
            data["unverified"] = unverified
        drafts = [Draft(type="session.forked", data=data)]
        if point.view.retention > unverified:  # a fork has the retention of the session whose past it shares
            drafts.append(Draft(type="retention.set", data=self.store.event(self.log, point.view.retention).data))
        log = self.store.create(
            "session",
            name,
            drafts,
            user_id=self.user_id,
            app_name=self.app_name,
            fork=point,
        )
        return self.on_log(self.store, log, self.agent)

    @property
    def parent(self) -> str | None:
        """The id of the session that this session was forked from; None for no fork, or if that session was deleted."""
        return None if self.log.parent is None else self.store.id_of_number(self.log.parent)

    def forks(self) -> _list[Self]:
        """Return the sessions that were forked from this session, oldest first."""
        return [
            self.on_log(self.store, info.log) for info in self.store.sessions(parent=self.log.number, limit=MAX_PAGE)
        ][::-1]

    def compare(self, other: Session) -> Comparison:
        """Compare with another session: the messages both share, then the further messages of each."""
        if not isinstance(other, Session):
            raise InvalidArgument(f"compare takes another Session, not {type(other).__name__}")
        mine, theirs = self.messages, other.messages
        common = 0
        for one, two in zip_longest(mine, theirs):
            if one is None or two is None or one != two or one.seq != two.seq:
                break
            common += 1
        return Comparison(common=mine[:common], mine=mine[common:], theirs=theirs[common:])

    # -- the log ---------------------------------------------------------------------------------------------------

    def events(
        self,
        since: str | date | datetime | None = None,
        limit: int | None = 100,
        types: str | Sequence[str] | None = None,
        after: int | None = None,
    ) -> _list[Event]:
        """Return the last `limit` events, oldest first; with `after`, the next `limit` events after that number."""
        if limit is not None:
            check_limit(limit)
        wanted = [types] if isinstance(types, str) else _list(types or ())
        start = None if since is None else parse_since(since)
        if after is not None:
            if isinstance(after, bool) or not isinstance(after, int) or after < 0:
                raise InvalidArgument(f"after={after!r}: use the number of the last event you have, or 0")
            rows = self.store.read(self.log, min(after, MAX_SEQ) + 1, limit=limit, types=wanted, since=start)
        else:
            rows = self.store.read(self.log, limit=limit, types=wanted, since=start, reverse=True)[::-1]
        unverified = self._view().unverified
        return [Event(row, unverified=unverified) for row in rows]

    # -- documents -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the view as a JSON document with a schema version, for `json.dump` and for any store of documents."""
        return document_of(self.store, self.log)

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], agent: BaseAgent | None = None, *, store: Store | SessionStore | str | None = None
    ) -> Self:
        """Create a session from a document of `to_dict`, as `store.save` does: in `store`, else in the agent's store,
        else in `HOLDFAST_STORE`, else in a new memory store."""
        from holdfast.stores.memory import MemoryStore

        if store is None and agent is not None:
            store = agent.store
        is_private = store is None and not os.environ.get("HOLDFAST_STORE")
        found = MemoryStore() if is_private else open_store(store)
        name = data.get("id") if isinstance(data, dict) else None
        return cls.on_log(found, restore_document(found, check_id(name, "'id' of the document"), data), agent)

    # -- awaitable methods -----------------------------------------------------------------------------------------

    @classmethod
    async def create_async(cls, id: str | None = None, **options: Any) -> Self:  # noqa: ANN401 - those of Session
        """Create or open a session, as `Session(id, ...)` does, without blocking the event loop."""
        return await off_thread(cls, id, **options)

    open_async = class_twin(open)
    list_async = class_twin(list)
    from_dict_async = class_twin(from_dict)
    import_async = class_twin(ExportMethods.__dict__["import_"])
    to_dict_async = twin(to_dict)
    fork_async = twin(fork)
    forks_async = twin(forks)
    compare_async = twin(compare)
    parent_async = property_twin("parent")
    head_async = property_twin("head")
    updated_at_async = property_twin("updated_at")
    events_async = twin(events)
    export_async = twin(ExportMethods.export)
    verify_async = twin(ExportMethods.verify)


def _name_methods_after(owner: type) -> None:
    """Let errors and warnings of Python name the methods of a class as its users do: `Session.run()`, not the base
    class that defines it."""
    for base in owner.__mro__[1:-1]:
        for method in vars(base).values():
            function = getattr(method, "__func__", method)
            if hasattr(function, "__code__"):
                function.__qualname__ = f"{owner.__name__}.{function.__name__}"


_name_methods_after(Session)


def parse_since(since: object) -> int:
    """Return a point in time in microseconds since 1970; without a time zone it is UTC."""
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
