"""Memory: what is known beyond one session. Thin: a scope, a service that finds things, and a log that keeps them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from holdfast.concurrency import twin
from holdfast.crashpoints import crashpoint
from holdfast.errors import InvalidArgument, SessionNotFound
from holdfast.log.arguments import check_limit
from holdfast.log.identifiers import check_owner
from holdfast.memory.keyword import KeywordMemoryService
from holdfast.memory.memory_log import IngestMark, MemoryLog, erase_memories_from
from holdfast.memory.service import (
    MAX_LIMIT,
    Hit,
    NewMemory,
    Remembered,
    Service,
    check_confidence,
    check_expiry,
    check_key,
    check_kind,
    check_query,
    check_taught_owner,
    check_text,
    memory_from_data,
    resolve_bound_owner,
)
from holdfast.memory.source import Origin, SourceSession, is_source_session
from holdfast.memory.vector import FLOOR, Embedder, HybridService
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.memory.ingestion import ModelChoice
    from holdfast.stores.base import Log, SessionStore, Store
    from holdfast.tools.tool import Tool

MIN_READ = 8  # memories that are read at a time, at least
_list = list  # inside the class, `list` is the method that lists memories


class VectorMemoryService(HybridService):
    """Finds memories by their words and by their vectors, fused by rank.

        VectorMemoryService(embedder="openai:text-embedding-3-small")
        VectorMemoryService(embedder="http://localhost:11434/v1", model="nomic-embed-text")
        VectorMemoryService(embedder=my_function)        # list of texts -> list of vectors

    Without an embedder the vectors are hashed n-grams: they know spelling, not meaning. `floor` is the cosine below
    which nothing counts as found.
    """

    def __init__(
        self,
        embedder: Embedder | str | None = None,
        *,
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        floor: float = FLOOR,
    ) -> None:
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not -1 <= floor <= 1:
            raise InvalidArgument(f"floor={floor!r} is a cosine: use a number from -1 to 1")
        if not isinstance(embedder, str):
            if embedder is not None and not callable(embedder):
                raise InvalidArgument(
                    f"embedder={embedder!r}: use a name such as 'openai:text-embedding-3-small', the URL of an "
                    "endpoint, or a function from a list of texts to a list of vectors"
                )
            if base_url is not None or api_key is not None:
                raise InvalidArgument("base_url= and api_key= belong to an endpoint: name it with embedder=")
            super().__init__(embedder, name=model, floor=floor)
            return
        from holdfast.models.embeddings import Embeddings

        if embedder.startswith(("http://", "https://")):
            if model is None:
                raise InvalidArgument("which model of that endpoint? Pass model= as well")
            found = Embeddings(model, base_url=embedder, api_key=api_key)
        else:
            found = Embeddings(embedder, base_url=base_url, api_key=api_key)
        super().__init__(found, name=found.name, floor=floor)


class Memory:
    """What is known across sessions, about one user or independent of users.

        memory = Memory(store=SQLiteStore("sessions.db"), user_id="alice")
        memory.store("diet", "Vegetarian, allergic to nuts")
        memory.search("what can she eat?")

    Memories are kept apart by tenant, app and user. They are found by keywords unless another service is given. Keep
    them in the store of the sessions that they come from: an erasure there reaches them.
    """

    def __init__(
        self,
        service: Service | None = None,
        *,
        store: Store | SessionStore | str | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
        model: ModelChoice | None = None,
    ) -> None:
        self.service: Service = KeywordMemoryService() if service is None else service
        if isinstance(service, type) or not callable(getattr(self.service, "ranked", None)):
            raise InvalidArgument(f"service={service!r}: use KeywordMemoryService() or VectorMemoryService()")
        self.user_id, self.app_name = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
        self.model = model
        self._store: Store | None = None if store is None else open_store(store)

    def __repr__(self) -> str:
        return f"Memory(service={self.service!r}, user_id={self.user_id!r}, app_name={self.app_name!r})"

    def on(self, store: Store) -> Self:
        """The same memory for sessions of another store: in that store, or in the one that was given, for its tenant.
        A server of several tenants uses it, so that no tenant gets another tenant's memories."""
        bound = copy.copy(self)
        bound._store = store if self._store is None else self._store.for_tenant(store.tenant)
        return bound

    def for_user(self, user_id: str, *, app_name: str | None = None) -> Self:
        """The same memory, bound to one user; with `app_name=` also to another app."""
        return self.of(*resolve_bound_owner(user_id, app_name, self.app_name))

    def of(self, user_id: str | None, app_name: str | None) -> Self:
        """The same memory for this user and app alone, instead of its default user and app."""
        bound = copy.copy(self)
        bound.user_id, bound.app_name = user_id, app_name
        return bound

    def describe(self) -> str:
        """How memories are found here, in words."""
        return self.service.describe()

    # -- keeping ---------------------------------------------------------------------------------------------------

    def store(
        self,
        key: str,
        text: str,
        *,
        kind: str = "fact",
        confidence: float = 1.0,
        expires: timedelta | float | datetime | None = None,
        source: SourceSession | tuple[SourceSession, int | Iterable[int]] | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
    ) -> Remembered:
        """Keep a text under a key, durably; the same key again replaces it. `expires` is a span, seconds or a moment;
        `source` a session, or a session and the numbers of events in it."""
        origin = None if source is None else origin_of(source)
        shelf = self._memory_log_for(origin, user_id, app_name)
        note = NewMemory(
            key=check_key(key),
            text=check_text(text),
            kind=check_kind(kind),
            confidence=check_confidence(confidence),
            expires_at=check_expiry(expires, shelf.store.clock.now()),
            source=None if origin is None else origin.data(),
        )
        found = self.keep(shelf, [note], origin)
        if not found:
            raise InvalidArgument("what this comes from was erased: nothing of it is kept")
        return found[0]

    def keep(
        self,
        shelf: MemoryLog,
        notes: Sequence[NewMemory],
        origin: Origin | None,
        *,
        alike: bool = False,
        mark: IngestMark | None = None,
    ) -> _list[Remembered]:
        """Keep checked memories, then remove those whose source was erased in the meantime."""
        extras = self.service.extras([note.text for note in notes]) if notes else []
        full = [replace(note, extras=extra) for note, extra in zip(notes, extras, strict=True)]
        found = shelf.put(full, alike=alike, mark=mark)
        # An erasure looks for memories after it has removed what they came from, and we look for that after we have
        # kept them: the later of the two sees the other.
        crashpoint("memories kept")
        gone = {} if origin is None else origin.find_erased()
        if not gone:
            return found
        erase_memories_from(shelf.store, (shelf.user_id, shelf.app_name), gone)
        log = shelf.find()
        return [] if log is None else [each for each in found if shelf.get(log, each.key) is not None]

    def forget(self, key: str, *, user_id: str | None = None, app_name: str | None = None) -> bool:
        """Remove a memory for good, with every earlier version of it; False if there was none."""
        return self._memory_log(user_id, app_name).forget(check_key(key))

    def ingest_from_session(
        self, session: SourceSession, *, model: ModelChoice | None = None, shared: bool = False
    ) -> _list[Remembered]:
        """Keep what a session says that is worth knowing later, with its sources.

        The session must have the user and the app of this memory: see `for_user`. With `shared`, a memory of no user
        learns from the session of a user, and keeps it for all. With a model it is asked for facts; without one, plain
        statements of the user and the session's facts are taken. What was looked at before is not looked at again.
        """
        from holdfast.memory.ingestion import ingest

        found = _check_session(session)
        log, owner = found.log, (self.user_id, self.app_name)
        check_taught_owner(log.id, (log.user_id, log.app_name), owner, shared=shared)
        if self._store is None and found.store is not open_store(None):
            raise InvalidArgument(
                f"session {log.id!r} is in {found.store!r}, and this memory, made without store=, looks in "
                f"{open_store(None)!r}: make it with Memory(store=...) of the session's store"
            )
        shelf = MemoryLog(self.on(found.store)._open_store(), *owner)
        return ingest(self, shelf, found, self.model if model is None else model)

    # -- finding ---------------------------------------------------------------------------------------------------

    def recall(
        self, keys: str | Iterable[str], *, user_id: str | None = None, app_name: str | None = None
    ) -> _list[Remembered]:
        """The memories under these keys, in the order asked; those that are not there are left out."""
        wanted = [check_key(key) for key in ([keys] if isinstance(keys, str) else _check_iterable(keys))]
        shelf = self._memory_log(user_id, app_name)
        log = shelf.find()
        events = [] if log is None else [shelf.get(log, key) for key in wanted]
        return [
            memory_from_data(event.data, event.at) for event in events if event is not None and shelf.is_current(event)
        ]

    def search(
        self,
        query: str,
        limit: int = 5,
        *,
        kind: str | None = None,
        min_confidence: float | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
    ) -> _list[Remembered]:
        """The memories that fit the query, best first."""
        check_limit(limit, MAX_LIMIT)
        check_query(query)
        kind = None if kind is None else check_kind(kind)
        least = 0.0 if min_confidence is None else check_confidence(min_confidence, "min_confidence")
        return self.search_on(self._memory_log(user_id, app_name), query, limit, kind=kind, least=least)

    def search_on(
        self, shelf: MemoryLog, query: str, limit: int, *, kind: str | None = None, least: float = 0.0
    ) -> _list[Remembered]:
        """The same for one memory log, independent of the default user and app."""
        found: _list[Remembered] = []
        if limit:
            for each, _ in self._iterate_hits(shelf, query, limit):
                if kind in (None, each.kind) and each.confidence >= least:
                    found.append(each)
                    if len(found) == limit:
                        break
        return found

    def list(
        self,
        kind: str | None = None,
        limit: int = 100,
        after: str | None = None,
        *,
        user_id: str | None = None,
        app_name: str | None = None,
    ) -> _list[Remembered]:
        """Memories in order of key; `after` is the last key of the page before."""
        check_limit(limit, MAX_LIMIT)
        kind = None if kind is None else check_kind(kind)
        first = None if after is None else check_key(after)
        return self.list_on(self._memory_log(user_id, app_name), kind=kind, limit=limit, after=first)

    def list_on(
        self, shelf: MemoryLog, *, kind: str | None = None, limit: int = 100, after: str | None = None
    ) -> _list[Remembered]:
        """The same for one memory log, independent of the default user and app."""
        log = shelf.find()
        live = {} if log is None else shelf.live_seqs(log)
        seqs = [seq for key, seq in live.items() if after is None or key > after]
        found: _list[Remembered] = []
        for start in range(0, len(seqs), max(limit, MIN_READ)):
            assert log is not None
            for event in shelf.read(log, seqs[start : start + max(limit, MIN_READ)]):
                if len(found) == limit:
                    return found
                if shelf.is_current(event) and kind in (None, event.data["kind"]):
                    found.append(memory_from_data(event.data, event.at))
        return found

    def _iterate_hits(self, shelf: MemoryLog, query: str, portion: int) -> Iterator[tuple[Remembered, Hit]]:
        """What fits a query, best first, read a portion at a time."""
        try:
            log = shelf.find()
            live = {} if log is None else shelf.live_seqs(log)
            hits = self.service.ranked(shelf, log, live, query)
        except SessionNotFound:
            return  # erased in this very moment
        size = max(portion, MIN_READ)
        for start in range(0, len(hits), size):
            part = {hit.seq: hit for hit in hits[start : start + size]}
            assert log is not None
            for event in shelf.read(log, [*part]):
                if shelf.is_current(event):
                    yield memory_from_data(event.data, event.at, part[event.seq].score), part[event.seq]

    # -- for the loop of an agent ----------------------------------------------------------------------------------

    def for_prompt(
        self, user_id: str | None, app_name: str | None, question: str, room: int, *, store: Store | None = None
    ) -> str:
        """What is known that fits a question, best first, a line each, within `room` bytes; "" if nothing fits well.

        `store` is the one of the session that asks: its tenant decides whose memories these are.
        """
        from holdfast.memory.agent_tools import format_memories

        bound = self if store is None else self.on(store)
        found = bound._iterate_hits(MemoryLog(bound._open_store(), user_id, app_name), question, MIN_READ)
        return format_memories((each for each, hit in found if hit.is_relevant), room)

    def tools(self) -> _list[Tool]:
        """The tools `save_memory` and `search_memory`, for the user and app of the session that calls them."""
        from holdfast.memory.agent_tools import make_tools

        return make_tools(self)

    # -- whose -----------------------------------------------------------------------------------------------------

    def _open_store(self) -> Store:
        return open_store(None) if self._store is None else self._store

    def _memory_log(self, user_id: str | None, app_name: str | None) -> MemoryLog:
        user, app = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
        return MemoryLog(self._open_store(), user or self.user_id, app or self.app_name)

    def _memory_log_for(self, origin: Origin | None, user_id: str | None, app_name: str | None) -> MemoryLog:
        if origin is None:
            return self._memory_log(user_id, app_name)
        log = origin.log
        for what, given, theirs in (("user_id", user_id, log.user_id), ("app_name", app_name, log.app_name)):
            if given not in (None, theirs):
                raise InvalidArgument(
                    f"{what}={given!r} is not that of session {log.id!r}: a memory belongs to the session's own user "
                    "and app, or an erasure could not find it"
                )
        return self.shelf_for(origin.store, log)

    def shelf_for(self, store: Store, log: Log) -> MemoryLog:
        """Where the memories of a session go: to its own user and app, in the store that its erasure reaches."""
        return MemoryLog(self.on(store)._open_store(), log.user_id, log.app_name)

    store_async = twin(store)
    forget_async = twin(forget)
    ingest_from_session_async = twin(ingest_from_session)
    recall_async = twin(recall)
    search_async = twin(search)
    list_async = twin(list)


def origin_of(source: object) -> Origin:
    """The events that `source=` names."""
    session, seqs = source if isinstance(source, tuple) and len(source) == 2 else (source, ())
    numbers: list[Any] = [seqs] if isinstance(seqs, int) else list(seqs) if isinstance(seqs, Iterable) else [None]
    if not all(isinstance(seq, int) and not isinstance(seq, bool) for seq in numbers):
        raise InvalidArgument("source= takes a session, or (session, seq), or (session, [seqs])")
    found = _check_session(session)
    return Origin(found.store, found.log, numbers).check_events()


def _check_session(session: object) -> SourceSession:
    if not is_source_session(session):
        raise InvalidArgument(f"{session!r} is no session of this process: open it with Session.open(id, store=...)")
    return session


def _check_iterable(keys: object) -> Iterable[object]:
    if not isinstance(keys, Iterable):
        raise InvalidArgument(f"recall takes a key or a list of keys, not {type(keys).__name__}")
    return keys
