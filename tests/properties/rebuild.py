"""Every projection of a log, against what a fold of its events alone gives; and again without the caches.

A view, snapshot, name, session row, count or search result that the events do not explain is a complaint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.log.events import MESSAGE_TYPES, Event, message_data
from holdfast.log.messages import message_from_data
from holdfast.log.named_values import NAMED_FIELDS, names_of, value_of
from holdfast.log.search_words import words
from holdfast.log.view import View
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.append import MAINTENANCE
from holdfast.stores.base import Log, Store

CACHES = ("snapshots", "words", "indexed")


def find_complaints(store: Store, log: Log, *, past: bool = True) -> Iterator[str]:
    """What the store believes about a log and its events do not say; with its past, at every single point."""
    events = [Event(row) for row in store.walk(log)]
    if [event.seq for event in events] != list(range(1, store.head(log).head + 1)):
        yield f"{log.id}: the numbers are not dense: {[event.seq for event in events]}"
        return
    view, refs = View(), dict[str, int | None]()
    for event in events:
        view.apply(event.seq, event.type, event.run, event.data)
        refs |= {name: ref for name, _, ref in names_of(event.seq, event.type, event.data)}
        if past or event is events[-1]:
            yield from _check_point(store, log, event.seq, view, refs)
    if store.head(log).view != view.to_bytes() or store.rebuild_view(log).to_bytes() != view.to_bytes():
        yield f"{log.id}: the view at the head is not the fold"
    yield from _check_row(store, log, view, refs, events)
    yield from _check_search(store, log, view, events)
    if not store.verify(log):
        yield f"{log.id}: {store.verify(log)}"


def find_complaints_without_caches(store: Store, log: Log) -> Iterator[str]:
    """The same, after everything that may be thrown away was."""
    forget_caches(store)
    yield from find_complaints(store, log)


def forget_caches(store: Store) -> None:
    if isinstance(store, MemoryStore):
        for kept in store._memory.logs.values():
            kept.snapshots.clear()
            kept.words.clear()
    elif isinstance(store, SQLiteStore):
        emptied = ["INSERT INTO words(words) VALUES('delete-all')", "DELETE FROM indexed", "DELETE FROM snapshots"]
        store.file.write(lambda db: [db.execute(statement) for statement in emptied])
    elif isinstance(store, PostgresStore):
        store.server.transaction(lambda db: [db.execute(f"DELETE FROM holdfast.{table}") for table in CACHES])


def _check_point(store: Store, log: Log, at: int, view: View, refs: dict[str, int | None]) -> Iterator[str]:
    if store.view(log, at).to_bytes() != view.to_bytes():
        yield f"{log.id}: view at {at} is {store.view(log, at)}, its events say {view}"
    for prefix in ("state/", "fact/"):
        found, told = store.refs(log, prefix, at), {name: ref for name, ref in refs.items() if name.startswith(prefix)}
        if found != told:
            yield f"{log.id}: {prefix} at {at} is {found}, its events say {told}"
    for name in ("title", "system", "metadata"):
        event = store.lookup(log, name, at)
        if (None if event is None else event.seq) != refs.get(name):
            yield f"{log.id}: {name} at {at} is held by {event}, its events say {refs.get(name)}"


def _check_row(store: Store, log: Log, view: View, refs: dict[str, int | None], events: list[Event]) -> Iterator[str]:
    if log.kind != "session":
        return
    info = store.info(log)
    told: dict[str, Any] = {"status": view.status}
    for name in NAMED_FIELDS:
        ref = refs.get(name)
        told[name] = None if ref is None else value_of(name, events[ref - 1].type, events[ref - 1].data)
    found = {"status": info.status, "title": info.title, "metadata": info.metadata, "work_dir": info.work_dir}
    told["metadata"] = told["metadata"] or {}
    if found != {name: told[name] for name in found}:
        yield f"{log.id}: the row says {found}, its events say {told}"
    active = [event.at for event in events if event.type not in MAINTENANCE]
    if info.updated_at != active[-1]:
        yield f"{log.id}: the row was updated at {info.updated_at}, the last activity was at {active[-1]}"


def _check_search(store: Store, log: Log, view: View, events: list[Event]) -> Iterator[str]:
    """Counting and searching, against reading every message."""
    said: dict[int, set[str]] = {}
    for first, last in view.visible:
        for event in events[first - 1 : last or None]:
            if event.type in MESSAGE_TYPES:
                said[event.seq] = set(words(message_from_data(message_data(event), lambda _: b"").text))
    if store.count(log, view.visible) != len(said):
        yield f"{log.id}: counts {store.count(log, view.visible)} messages, there are {len(said)}"
    for word in sorted(set().union(*said.values())):
        found, told = store.search(log, [word], view.visible, 1000), [seq for seq in said if word in said[seq]]
        if found != told:
            yield f"{log.id}: searching {word!r} finds {found}, the messages say {told}"
