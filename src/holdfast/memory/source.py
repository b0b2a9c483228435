"""Where a memory comes from: which log holds the events that say so, and whether they still do.

A fork reads events that its parent holds, and an event can be redacted through either: so the log that holds it is
what is written down. Internal ids are never used twice, so a namesake of a deleted session is never mistaken for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard

from holdfast.errors import InvalidArgument, SessionNotFound
from holdfast.log.view import decode_view
from holdfast.stores.base import Log, Store


class SourceSession(Protocol):
    """A session of this process, as far as a memory needs it: the log that holds its events."""

    @property
    def store(self) -> Store: ...

    @property
    def log(self) -> Log: ...


def is_source_session(value: object) -> TypeGuard[SourceSession]:
    """Whether a value has a log of this process; the sessions of a client have none."""
    return isinstance(getattr(value, "store", None), Store) and isinstance(getattr(value, "log", None), Log)


class Origin:
    """Events of a session, as the source of memories."""

    def __init__(self, store: Store, log: Log, seqs: Iterable[int] = ()) -> None:
        self.store, self.log, self.seqs = store, log, sorted(set(seqs))

    def check_events(self) -> Origin:
        """Itself; InvalidArgument if there is no such event."""
        head = self.store.head(self.log).head
        for seq in self.seqs:
            if not 1 <= seq <= head:
                raise InvalidArgument(f"there is no event {seq} in session {self.log.id!r}: its last one is {head}")
        return self

    def data(self) -> dict[str, Any]:
        """What the event of a memory says about where it comes from."""
        events: dict[str, list[int]] = {}
        for seq in self.seqs:
            events.setdefault(self._holder_uid(seq), []).append(seq)
        return {"session": self.log.id, "uid": self.log.uid, "events": events}

    def _holder_uid(self, seq: int) -> str:
        ((number, _, _),) = self.log.segments(seq, seq)
        return self.log.uid if number == self.log.number else self.store.log_of_number(number).uid

    def find_erased(self) -> dict[str, list[int] | None]:
        """Those of the events that are gone, by the log that held them; None for a log that was erased as a whole. A
        session that was merely deleted leaves what was learnt from it."""
        try:
            if decode_view(self.store.head(self.log).view).lifecycle == "erased":
                return {self.log.uid: None}
            found: dict[str, list[int] | None] = {}
            for seq in self.seqs:
                if any(row.body is None for row in self.store.read(self.log, seq, seq)):
                    found.setdefault(self._holder_uid(seq), []).append(seq)  # type: ignore[union-attr]
            return found
        except SessionNotFound:
            return {}
