"""Retention, legal holds, redaction and erasure of a session. The log records each of them, with actor and reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.concurrency import class_twin, property_twin, twin
from holdfast.errors import Conflict, InvalidArgument, SessionNotFound
from holdfast.log.events import UNREADABLE, Draft, Event
from holdfast.log.identifiers import call_key, check_name, check_owner, session_of_call
from holdfast.log.view import decode_view
from holdfast.memory.memory_log import USER_KIND as USER_MEMORY
from holdfast.memory.memory_log import erase_memories_from
from holdfast.policy.retention import Retention
from holdfast.stores.erasure import ErasurePlan, plan_erasure, plan_erasure_of_deleted, plan_redaction
from holdfast.stores.receipts import make_receipt
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.base import Log, SessionStore, Store
    from holdfast.stores.repetition import Repetition
    from holdfast.worker.sweep import SweepReport

PAGE = 200
_CALL_TYPES = ("tool.called", "tool.returned")  # the question to an agent that is called as a tool, and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """The result of a redaction."""

    seq: int  # the event that the caller named
    also: list[int] = field(default_factory=list)  # the other events whose payload was removed: they repeated its text
    receipt: dict[str, Any] | None = field(default=None, repr=False)  # signed, if a signing key is configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The result of an erasure."""

    sessions: list[str]  # ids of the erased sessions
    events: int  # number of events whose payload was removed
    user_state: bool = False  # whether the state of the user was erased too
    memories: bool = False  # whether the memories of the user were erased too
    receipt: dict[str, Any] | None = field(default=None, repr=False)  # signed, if a signing key is configured


class ComplianceMethods:
    """The compliance methods of `Session`: `retention`, `hold`, `release`, `held`, `redact`, `erase`, `erase_user`,
    `sweep`."""

    store: Store
    log: Log
    cache: SessionCache
    if TYPE_CHECKING:

        def _check_seq(self, at: object, head: int) -> int: ...

    @property
    def retention(self) -> dict[str, Any] | None:
        """The retention of the session (how long it is kept, and in what form) as a dict; None if none was set."""
        found: dict[str, Any] | None = self.store.value(self.log, "retention")
        return found

    @retention.setter
    def retention(self, value: Retention | Mapping[str, Any]) -> None:
        self._set_retention(value, None)

    def _set_retention(self, value: Retention | Mapping[str, Any], actor: str | None) -> None:
        wanted = Retention.of(value)
        if wanted.to_dict() != self.retention:
            self.store.append(self.log, [Draft(type="retention.set", data=wanted.to_dict(), actor=actor)])

    # -- legal holds -----------------------------------------------------------------------------------------------

    def hold(self, reason: str, *, actor: str | None = None) -> None:
        """Place a legal hold: until `release`, nothing is erased or removed, and the retention does not apply."""
        self.store.append(self.log, [Draft(type="session.held", data=self._reason_data(reason), actor=actor)])

    def release(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """End a legal hold. Also lets retention remove a session whose turn is parked, failed or waiting: without a
        release, such a session stays after its time is up."""
        data = {} if reason is None else self._reason_data(reason)
        self.store.append(self.log, [Draft(type="session.released", data=data, actor=actor)])

    @property
    def held(self) -> str | None:
        """The reason of the legal hold; None if the session is not under one."""
        seq = decode_view(self.store.head(self.log).view).held
        return None if not seq else self.store.event(self.log, seq).data.get("reason", "")

    # -- removing text ---------------------------------------------------------------------------------------------

    def redact(self, seq: int, *, reason: str, actor: str | None = None) -> Redacted:
        """Remove the payload of one event, and of every event that repeats its text; their hashes stay.

        This includes the events of its turn that repeat it (arguments, results, answers, state, facts, errors),
        summaries that cover one of these events, later versions of a fact, stored prompts, attached bytes, memories,
        and entries in the search index. If one of the events called an agent as a tool, the session of that agent is
        erased too.
        """
        data = self._reason_data(reason)
        store = self.store
        called: list[Log] | None = None
        while True:
            self._check_seq(seq, store.head(self.log).head)
            if store.event(
                self.log, seq
            ).erased:  # a redaction that a crash cut short may have left memories: remove them now
                self._forget_memories({number: [seq] for number, _, _ in self.log.segments(seq, seq)})
            holder, burial = plan_redaction(store, self.log, seq)
            gone_from = {number: [each for each, _ in stones] for number, stones in burial.tombstones.items()}
            if (
                called is None
            ):  # memories go first: removing them takes time, so the redaction is planned again after it
                called = _sessions_called_by(
                    store, holder, [store.event(holder, each) for each in gone_from[holder.number]]
                )
                self._forget_memories(gone_from, burial.repetition)
                continue
            recorder = (
                holder if holder.id else self.log
            )  # a deleted session has no id, but its forks still hold its events: record it here
            burial.heads.setdefault(recorder.number, store.head_of_number(recorder.number).head)
            record = {"seq": seq, **data, **burial.record_data(recorder)}
            try:
                store.apply_erasure(recorder, [Draft(type="event.redacted", data=record, actor=actor)], burial)
            except Conflict:
                continue  # another writer appended first: there may be more to remove, so plan again
            # Again: a memory may have been made between the first pass and the redaction.
            self._forget_memories(gone_from, burial.repetition)
            self._erase_called_sessions(called, data, actor or "holdfast")
            self.cache.forget_history()
            gone = sorted(each for stones in burial.tombstones.values() for each, _ in stones)
            receipt = make_receipt(store, "redaction", [self.log], events=len(gone), actor=actor)
            return Redacted(seq=seq, also=[each for each in gone if each != seq], receipt=receipt)

    def erase(self, *, reason: str, actor: str) -> Erased:
        """Remove every payload of this session for good, even if the session is immutable.

        This includes messages, state, facts, summaries, title, metadata, attached bytes, the search index, memories
        that came from the session, and the sessions of agents that it called as tools. The hashes stay, so the chain
        still verifies. Raises if the session or one of those sessions is under a legal hold.
        """
        data, who = self._reason_data(reason), _check_actor(actor)
        called = _sessions_called_by(self.store, self.log, _tool_call_events(self.store, self.log))
        owner, whole = (self.log.user_id, self.log.app_name), _uids_erased_with(self.store, self.log)
        erase_memories_from(self.store, owner, whole)
        count = _erase_log(self.store, self.log, data, who)
        erase_memories_from(self.store, owner, whole)
        count += self._erase_called_sessions(called, data, who)
        self.cache.forget_history()
        receipt = make_receipt(self.store, "erasure", [self.log, *called], events=count, actor=who)
        return Erased(sessions=[self.log.id, *(log.id for log in called)], events=count, receipt=receipt)

    @classmethod
    def erase_user(
        cls, user_id: str, *, reason: str, actor: str, store: Store | SessionStore | str | None = None
    ) -> Erased:
        """Erase every session of a user, and the state and memories of the user. Raises if one of the sessions is under
        a legal hold; nothing is erased then."""
        found = open_store(store)
        owner = check_owner(user_id, "user_id")
        if owner is None:
            raise InvalidArgument("erase_user needs the user_id")
        data, who = {"reason": check_name(reason, "a reason", found.limits.metadata)}, _check_actor(actor)
        logs = _logs_of_user(found, owner)
        # Planning raises for a session under a hold, before any session is erased.
        gone = [_uids_erased_with(found, log) for log in logs]
        events, ids = 0, []
        for log, uids in zip(logs, gone, strict=True):
            shared = None, log.app_name  # the memories of the user go with their log, below
            erase_memories_from(found, shared, uids)
            events += _erase_log(found, log, data, who)
            erase_memories_from(found, shared, uids)
            ids.append(log.id)
        removed = []
        for kind in ("user", USER_MEMORY):
            own = found.find(kind, quote(owner, safe=""))
            if own is not None:
                # A log that is already erased: a crash stopped an earlier call before `remove`, which frees its name.
                if decode_view(found.head(own).view).lifecycle != "erased":
                    events += _erase_log(found, own, data, who)
                found.remove(kind, own.id)
                removed.append(kind)
        return Erased(
            sessions=ids,
            events=events,
            user_state="user" in removed,
            memories=USER_MEMORY in removed,
            receipt=make_receipt(found, "erasure", logs, events=events, actor=who),
        )

    @classmethod
    def sweep(
        cls, store: Store | SessionStore | str | None = None, *, dry_run: bool = False, batch: int = 200
    ) -> SweepReport:
        """Apply retention to every session that is due: archive it, or purge it. Returns what was done.

        `store` is an object, a URL, or None for the configured store. A dry run changes nothing and returns what would
        be done. A server does the same every minute.
        """
        from holdfast.worker.sweep import sweep  # imported late: most programs sweep from the command line

        return sweep(store, dry_run=dry_run, batch=batch)

    def _forget_memories(self, gone: Mapping[int, Iterable[int]], repetition: Repetition | None = None) -> None:
        """Remove the memories that came from these events, by the number of their log; also those that came from the
        turn of a redacted event and repeat its text."""
        found = {self.store.log_of_number(number).uid: seqs for number, seqs in gone.items()}
        erase_memories_from(self.store, (self.log.user_id, self.log.app_name), found, repetition)

    def _erase_called_sessions(self, called: Iterable[Log], data: dict[str, Any], actor: str) -> int:
        """Erase the sessions of agents that were called as tools, since their questions repeat text of this session.

        Returns the number of events whose payload was removed.
        """
        count, owner = 0, (self.log.user_id, self.log.app_name)
        for log in called:
            erase_memories_from(self.store, owner, {log.uid: None})
            count += _erase_log(self.store, log, data, actor)
            erase_memories_from(self.store, owner, {log.uid: None})
        return count

    def _reason_data(self, reason: str) -> dict[str, Any]:
        return {"reason": check_name(reason, "a reason", self.store.limits.metadata)}

    retention_async = property_twin("retention")
    held_async = property_twin("held")
    hold_async = twin(hold)
    release_async = twin(release)
    erase_user_async = class_twin(erase_user)
    sweep_async = class_twin(sweep)
    redact_async = twin(redact)
    erase_async = twin(erase)


def _check_actor(actor: str) -> str:
    return check_name(actor, "actor")


def _logs_of_user(store: Store, owner: str) -> list[Log]:
    found: list[Log] = []
    while page := store.sessions(user_id=owner, limit=PAGE, after=found[-1] if found else None):
        found += [info.log for info in page]
    return found


def _tool_call_events(store: Store, log: Log) -> list[Event]:
    """Return the tool calls that the log recorded itself, without those of the past that a fork shares."""
    return [Event(row) for row in store.read(log, log.base + 1, types=["tool.called"])]


def _sessions_called_by(store: Store, log: Log, events: Iterable[Event]) -> list[Log]:
    """Return the sessions of the agents that these events call as tools, and the sessions that those called in turn.

    Sessions that are already erased are left out. Raises if one of the sessions must not be erased.
    """
    found: list[Log] = []
    for event in events:
        call_id = _call_id_of(event) if event.type in _CALL_TYPES else None
        if event.run is not None and call_id is not None:
            child = store.find("session", session_of_call(call_key(log.uid, event.run, call_id)))
            if child is not None and decode_view(store.head(child).view).lifecycle != "erased":
                plan_erasure(store, child)
                found += [child, *_sessions_called_by(store, child, _tool_call_events(store, child))]
    return list({child.number: child for child in found}.values())  # a call and its result name the same session


def _call_id_of(event: Event) -> str | None:
    """The call of an event; None if its payload is not as holdfast writes it."""
    try:
        found = event.data.get("call_id")
    except UNREADABLE:
        return None
    return found if isinstance(found, str) else None


def _uids_erased_with(store: Store, log: Log) -> dict[str, None]:
    """The logs that are erased as a whole with a session, as the memories name them. Raises for a session under a
    hold."""
    return {store.log_of_number(number).uid: None for number in plan_erasure(store, log).whole_logs}


def _erase_log(store: Store, log: Log, data: dict[str, Any], actor: str) -> int:
    """Erase one log; plans again when another writer appends first. Returns the number of payloads removed.

    Another process may delete the session meanwhile. Its forks still show what they share with it, so that is erased.
    """
    while True:
        try:
            burial = plan_erasure(store, log)
            record = data | burial.record_data(log)
            store.apply_erasure(log, [Draft(type="session.erased", data=record, actor=actor)], burial)
        except Conflict:
            continue
        except SessionNotFound:
            if store.id_of_number(log.number) is None:
                return _erase_deleted_log(store, log, data, actor)
            continue  # a fork was deleted while it was looked at
        return _count_tombstones(burial)


def _erase_deleted_log(store: Store, log: Log, data: dict[str, Any], actor: str) -> int:
    """Erase what forks show of a deleted session. One of them records it, and the others get a notice."""
    while True:
        try:
            found = plan_erasure_of_deleted(store, log)
            if found is None:
                return 0
            recorder, burial = found
            record = data | {"by": log.id} | burial.record_data(recorder)
            store.apply_erasure(recorder, [Draft(type="event.redacted", data=record, actor=actor)], burial)
            return _count_tombstones(burial)
        except (Conflict, SessionNotFound):
            continue  # a fork has moved or is deleted: another one may have to record it


def _count_tombstones(burial: ErasurePlan) -> int:
    return sum(len(stones) for stones in burial.tombstones.values())
