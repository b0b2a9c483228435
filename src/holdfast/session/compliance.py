"""Keeping a session: retention, legal holds, redaction and erasure. Each is recorded, with who did it and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.concurrency import twin
from holdfast.errors import Conflict, InvalidArgument, SessionNotFound
from holdfast.log.events import Draft, Event
from holdfast.log.identifiers import call_key, checked_name, checked_owner, session_of_call
from holdfast.log.view import view_of
from holdfast.memory.memory_log import USER as USER_MEMORY
from holdfast.memory.memory_log import bury_from
from holdfast.policy.retention import Retention
from holdfast.stores.erasure import plan_erasure, plan_redaction
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.stores.base import Log, SessionStore, Store

PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """What a redaction removed: the event, and the events that repeated its text."""

    seq: int
    also: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure reached."""

    sessions: list[str]
    events: int
    user_state: bool = False
    memories: bool = False


class Keeping:
    """The methods of a session about how long it lives, and what of it must go or must stay."""

    store: Store
    _log: Log
    if TYPE_CHECKING:

        def _checked_seq(self, at: object, head: int) -> int: ...
        def _drop_windows(self) -> None: ...

    @property
    def retention(self) -> dict[str, Any] | None:
        """How long the session is kept and in what form, as it was given; None if nothing was."""
        found: dict[str, Any] | None = self.store.value(self._log, "retention")
        return found

    @retention.setter
    def retention(self, value: Retention | Mapping[str, Any]) -> None:
        self._set_retention(value, None)

    def _set_retention(self, value: Retention | Mapping[str, Any], actor: str | None) -> None:
        wanted = Retention.of(value)
        if wanted.to_dict() != self.retention:
            self.store.append(self._log, [Draft(type="retention.set", data=wanted.to_dict(), actor=actor)])

    # -- legal holds -----------------------------------------------------------------------------------------------

    def hold(self, reason: str, *, actor: str | None = None) -> None:
        """Keep everything as it is, whatever the retention says, until `release`."""
        self.store.append(self._log, [Draft(type="session.held", data=self._because(reason), actor=actor)])

    def release(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """End a hold; or let a session whose turn is parked, failed or waiting go when its time is up."""
        data = {} if reason is None else self._because(reason)
        self.store.append(self._log, [Draft(type="session.released", data=data, actor=actor)])

    @property
    def held(self) -> str | None:
        """Why the session is under a legal hold; None if it is not."""
        seq = view_of(self.store.head(self._log).view).held
        return None if not seq else self.store.event(self._log, seq).data.get("reason", "")

    # -- removing text ---------------------------------------------------------------------------------------------

    def redact(self, seq: int, *, reason: str, actor: str | None = None) -> Redacted:
        """Remove the payload of one event, and of every event that repeats its text; their hashes stay.

        Summaries that cover it, copies of a call's arguments, state and facts that were taken from a reply, stored
        prompts, attached bytes, memories that came from it and the search index go with it; so do the sessions of
        agents that were called as tools with it.
        """
        data = self._because(reason)
        store = self.store
        called: list[Log] | None = None
        while True:
            self._checked_seq(seq, store.head(self._log).head)
            if store.event(self._log, seq).erased:  # a redaction that was cut short has its memories still to take
                self._forget_memories({number: [seq] for number, _, _ in self._log.segments(seq, seq)})
            holder, burial = plan_redaction(store, self._log, seq)
            gone_from = {number: [each for each, _ in stones] for number, stones in burial.tombs.items()}
            if called is None:  # what lives elsewhere goes first; then it is planned anew, and carried out at once
                called = _called_by(store, holder, [store.event(holder, each) for each in gone_from[holder.number]])
                self._forget_memories(gone_from)
                continue
            recorder = holder if holder.id else self._log  # a deleted session lives on in its forks
            burial.heads.setdefault(recorder.number, store.bare_head(recorder.number).head)
            record = {"seq": seq, **data, **burial.record(recorder)}
            try:
                store.bury(recorder, [Draft(type="event.redacted", data=record, actor=actor)], burial)
            except Conflict:
                continue  # somebody wrote meanwhile: there may be more to remove
            self._forget_memories(gone_from)  # whoever learnt from it in between looks for it after this
            self._erase_called(called, data, actor or "holdfast")
            self._drop_windows()
            gone = sorted(each for stones in burial.tombs.values() for each, _ in stones)
            return Redacted(seq=seq, also=[each for each in gone if each != seq])

    def erase(self, *, reason: str, actor: str) -> Erased:
        """Remove every payload of this session for good, immutable or not: messages, state, facts, summaries, title,
        metadata, attached bytes, search index, memories that came from it; and the sessions of agents that it called as
        tools. The hashes stay, so the chain still verifies. A hold forbids it."""
        data, who = self._because(reason), _checked_actor(actor)
        called = _called_by(self.store, self._log, _calls(self.store, self._log))
        whole = dict.fromkeys(plan_erasure(self.store, self._log).whole)
        self._forget_memories(whole)
        count = _erase(self.store, self._log, data, who)
        self._forget_memories(whole)
        count += self._erase_called(called, data, who)
        self._drop_windows()
        return Erased(sessions=[self._log.id, *(log.id for log in called)], events=count)

    @classmethod
    def erase_user(
        cls, user_id: str, *, reason: str, actor: str, store: Store | SessionStore | str | None = None
    ) -> Erased:
        """Erase every session of a user, the user's own state and memories. Held sessions stop it before anything is
        erased."""
        found = open_store(store)
        owner = checked_owner(user_id, "user_id")
        if owner is None:
            raise InvalidArgument("erase_user needs the user_id")
        data, who = {"reason": checked_name(reason, "a reason", found.limits.metadata)}, _checked_actor(actor)
        logs = _logs_of(found, owner)
        for log in logs:
            plan_erasure(found, log)  # raises for a held one, before the first is touched
        events, ids = 0, []
        for log in logs:
            events += _erase(found, log, data, who)
            ids.append(log.id)
        removed = []
        for kind in ("user", USER_MEMORY):
            own = found.find(kind, quote(owner, safe=""))
            if own is not None:
                if view_of(found.head(own).view).life != "erased":  # or somebody was stopped before its name was freed
                    events += _erase(found, own, data, who)
                found.remove(kind, own.id)
                removed.append(kind)
        return Erased(sessions=ids, events=events, user_state="user" in removed, memories=USER_MEMORY in removed)

    def _forget_memories(self, gone: Mapping[int, Iterable[int] | None]) -> None:
        """Remove what was learnt from these events (None: all) of these logs."""
        found = {self.store.log_of(number).uid: seqs for number, seqs in gone.items()}
        bury_from(self.store, (self._log.user_id, self._log.app_name), found)

    def _erase_called(self, called: Iterable[Log], data: dict[str, Any], actor: str) -> int:
        """Erase the sessions of agents that were called as tools: what they were asked was said here."""
        count = 0
        for log in called:
            self._forget_memories({log.number: None})
            count += _erase(self.store, log, data, actor)
            self._forget_memories({log.number: None})
        return count

    def _because(self, reason: str) -> dict[str, Any]:
        return {"reason": checked_name(reason, "a reason", self.store.limits.metadata)}

    redact_async = twin(redact)
    erase_async = twin(erase)


def _checked_actor(actor: str) -> str:
    return checked_name(actor, "actor")


def _logs_of(store: Store, owner: str) -> list[Log]:
    found: list[Log] = []
    while page := store.sessions(user_id=owner, limit=PAGE, after=found[-1].id if found else None):
        found += [info.log for info in page]
    return found


def _calls(store: Store, log: Log) -> list[Event]:
    """The calls of tools in a log of its own."""
    return [Event(row) for row in store.read(log, log.base + 1, types=["tool.called"])]


def _called_by(store: Store, log: Log, events: Iterable[Event]) -> list[Log]:
    """The sessions of agents that these calls were made to, and of those that they called in turn. Raises if one of
    them must not be erased."""
    found: list[Log] = []
    for event in events:
        if event.type == "tool.called" and event.run is not None and "call_id" in event.data:
            child = store.find("session", session_of_call(call_key(log.uid, event.run, event.data["call_id"])))
            if child is not None and view_of(store.head(child).view).life != "erased":
                plan_erasure(store, child)
                found += [child, *_called_by(store, child, _calls(store, child))]
    return found


def _erase(store: Store, log: Log, data: dict[str, Any], actor: str) -> int:
    while True:
        try:
            burial = plan_erasure(store, log)
            record = data | burial.record(log)
            store.bury(log, [Draft(type="session.erased", data=record, actor=actor)], burial)
        except Conflict:
            continue
        except SessionNotFound:
            return 0  # deleted meanwhile
        return sum(len(stones) for stones in burial.tombs.values())
