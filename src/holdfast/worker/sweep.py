"""The sweep carries out retention: it archives sessions, and purges them when their time has passed.

One sweeper works at a time, under a lease on a log of its own. It writes to that log what it will purge before it
purges, and the counts afterwards. Every decision rests on one read of a session, and the store refuses the act if the
session has moved since: a turn that begins in between wins. A sweeper that dies leaves each session whole or gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast import diagnostics
from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    AgentError,
    ClocksDisagree,
    Conflict,
    CorruptLog,
    ImmutableSession,
    InvalidArgument,
    LifecycleError,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionHeld,
    SessionNotFound,
    StoreBusy,
    StoreError,
    StoreFull,
    WrongKey,
)
from holdfast.log.events import Draft
from holdfast.log.view import decode_view
from holdfast.policy.retention import Retention, SweepDecision, SweepState, decide_sweep
from holdfast.stores.append import Head
from holdfast.stores.base import Log, SessionStore, Store, TenantLog
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal, report_takeover
from holdfast.stores.receipts import sign_purges
from holdfast.stores.urls import open_store

BATCH = 200
PAUSE_FACTOR = 2.0  # length of a pause, in times of the act before it
LONGEST_PAUSE = 0.1
KIND, ID = "sweep", "sweep"
TIDY_BYTES = 128 << 20  # size of a SQLite file that a sweep rewrites after removals: a second or two
RETRY_DELAY = 60_000_000  # microseconds until a session that could not be changed is due again
FAILURE_DELAY = 3_600_000_000  # microseconds until a session that could not be judged is due again
MAX_SKEW = 60_000_000  # microseconds between the clock of this machine and that of the database


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSession:
    """What a sweep did to one session; in a dry run, what it would do."""

    id: str
    tenant: str
    act: str  # archived, purged, kept or failed
    why: str


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """What a sweep did. `busy`: another sweeper holds the lease, so nothing was done."""

    dry_run: bool = False
    busy: bool = False
    looked: int = 0
    sessions: list[SweptSession] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)  # of purges, if a signing key is configured

    @property
    def archived(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "archived"]

    @property
    def purged(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "purged"]

    @property
    def kept(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "kept"]

    @property
    def failed(self) -> list[str]:
        """The sessions that could not be judged or changed. They are tried again later."""
        return [each.id for each in self.sessions if each.act == "failed"]


def sweep(
    store: Store | SessionStore | str | None = None,
    *,
    dry_run: bool = False,
    batch: int = BATCH,
    on_batch: Callable[[SweepReport], None] | None = None,
) -> SweepReport:
    """Apply retention to every session that is due, in batches, and return what was done.

    `store` is an object, a URL, or None for the configured store. Covers every tenant if the store is bound to none. A
    dry run changes nothing and returns what would be done. A session that cannot be judged is reported as failed and
    put off; the sweep goes on with the others. Raises ClocksDisagree if the clock of the database is another one.
    """
    store = open_store(store)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidArgument(f"batch={batch!r}: use a whole number above 0")
    report = SweepReport(dry_run=dry_run)
    if dry_run:
        now = _read_time(store)
        for due in store.due_for_sweep(now, limit=1_000_000):
            _preview_session(store, due, now, report)
            if on_batch is not None and report.looked % batch == 0:
                on_batch(report)
        return report
    began = store.clock.monotonic()
    sweeper = _Sweeper.begin(store)
    if sweeper is None:
        report.busy = True
        return report
    with sweeper.renewal:
        try:
            for page in sweeper.due_batches(batch):
                sweeper.sweep(page, report)
                if on_batch is not None:
                    on_batch(report)
        finally:
            sweeper.end()
    try:
        store.tidy(max_bytes=TIDY_BYTES)
    except (StoreBusy, StoreFull):
        pass  # the next sweep tries again
    _report_sweep(report, store.clock.monotonic() - began)
    return report


def _read_time(store: Store) -> int:
    """Return now, by the clock that all processes share. A machine whose clock runs ahead must not purge what others
    still keep, and one that is behind has written wrong times of last activity: it must not judge by them."""
    before = store.clock.now()
    now = store.read_time()
    after = store.clock.now()
    if not before - MAX_SKEW <= now <= after + MAX_SKEW:
        raise ClocksDisagree(round((before - now) / 1e6, 1))
    return now


def _report_sweep(done: SweepReport, seconds: float) -> None:
    """Report a sweep, by its numbers. A server sweeps every minute: a sweep that found nothing due is for DEBUG."""
    diagnostics.report(
        logging.INFO if done.looked else logging.DEBUG,
        "a sweep looked at %(looked)d sessions: %(archived)d archived, %(purged)d purged, %(kept)d kept",
        {
            "looked": done.looked,
            "archived": len(done.archived),
            "purged": len(done.purged),
            "kept": len(done.kept),
            "seconds": seconds,
        },
    )


class _Sweeper:
    """One sweep under its lease."""

    def __init__(self, store: Store, log: Log, epoch: int, now: int) -> None:
        self.store, self.log, self.epoch, self.now = store, log, epoch, now
        self.renewal = Renewal(store, log, epoch)

    @classmethod
    def begin(cls, store: Store) -> _Sweeper | None:
        now = _read_time(store)
        log = store.find(KIND, ID)
        if log is None:
            try:
                log = store.create(KIND, ID, [Draft(type="entity.created")])
            except SessionExists:
                log = store.require(KIND, ID)
        claim = Claim(holder=encode_holder(store.clock.new_id()), seconds=lease_seconds())
        try:
            done = store.append(log, [], claim=claim)
        except SessionBusy:
            return None
        if done.has_taken_over:
            report_takeover(log)
        return cls(store, log, done.epoch, now)

    def due_batches(self, size: int) -> Iterator[list[TenantLog]]:
        """Yield the sessions that are due, batch by batch. A session that was handled is not due any more, so each
        session comes once."""
        seen: set[int] = set()
        while due := [each for each in self.store.due_for_sweep(self.now, limit=size) if each.log.number not in seen]:
            seen |= {each.log.number for each in due}
            yield due

    def sweep(self, due: list[TenantLog], report: SweepReport) -> None:
        """Handle one batch: decide, log what will be purged, act, log the counts."""
        judged = []
        for each in due:
            report.looked += 1
            try:
                found = _judge_session(self.store.for_tenant(each.tenant), each.log, self.now)
            except Exception as error:  # noqa: BLE001 - one bad session or sweep must not stop the next
                report.sessions.append(self._put_off(each, error))
                continue
            if found is not None:
                judged.append((each, *found))
        purges = [self._tombstone(each, head) for each, head, verdict in judged if verdict.action == "purge"]
        if purges:
            self.store.append(self.log, [Draft(type="sweep.planned", data={"purge": purges})], epoch=self.epoch)
        crashpoint("sweep planned")
        before = len(report.sessions)
        for each, head, verdict in judged:
            self.renewal.check()
            began = self.store.clock.monotonic()
            try:
                report.sessions.append(self._apply_verdict(each, head, verdict))
            except Exception as error:  # noqa: BLE001 - one bad session or sweep must not stop the next
                report.sessions.append(self._put_off(each, error))
            crashpoint("swept one")
            # Turns need the store as well: the sweep writes for at most a third of the time.
            self.store.clock.sleep(min(LONGEST_PAUSE, PAUSE_FACTOR * (self.store.clock.monotonic() - began)))
        done = report.sessions[before:]
        acts = {act: sum(each.act == act for each in done) for act in ("archived", "purged", "kept")}
        if acts["archived"] or acts["purged"]:
            gone = {(each.tenant, each.id) for each in done if each.act == "purged"}
            receipt = sign_purges(self.store, [each for each in purges if (each["tenant"], each["id"]) in gone])
            signed = {} if receipt is None else {"receipt": receipt}
            self.store.append(self.log, [Draft(type="sweep.finished", data=acts | signed)], epoch=self.epoch)
            if receipt is not None:
                report.receipts.append(receipt)

    def _tombstone(self, due: TenantLog, head: Head) -> dict[str, Any]:
        """Return what stays of a purged session: the hash of its head, which no other log can have."""
        log = due.log
        return {"id": log.id, "tenant": due.tenant, "uid": log.uid, "head": head.head, "hash": head.hash.hex()}

    def _apply_verdict(self, due: TenantLog, head: Head, verdict: SweepDecision) -> SweptSession:
        store, log = self.store.for_tenant(due.tenant), due.log
        act, why = "kept", verdict.reason
        again = verdict.next_sweep_at
        try:
            if verdict.action == "archive":
                _archive(store, log, head, why)
                act = "archived"
            elif verdict.action == "purge":
                store.remove(log.kind, log.id, expected=head.head)
                return SweptSession(id=log.id, tenant=due.tenant, act="purged", why=why)
        except SessionNotFound:
            return SweptSession(id=log.id, tenant=due.tenant, act="kept", why="it was deleted meanwhile")
        except (Conflict, SessionBusy):
            why, again = "it was used meanwhile", self.now + RETRY_DELAY
        except (SessionHeld, ImmutableSession, LifecycleError, SessionError) as error:
            why, again = str(error), self.now + RETRY_DELAY
        store.schedule_sweep(log, again if again is None or again > self.now else self.now + 1)
        return SweptSession(id=log.id, tenant=due.tenant, act=act, why=why)

    def _put_off(self, due: TenantLog, error: Exception) -> SweptSession:
        """Put off a session that could not be judged or changed, so that it stops no other session."""
        swept = _report_failure(due, error)
        self.store.for_tenant(due.tenant).schedule_sweep(due.log, self.now + FAILURE_DELAY)
        return swept

    def end(self) -> None:
        try:
            self.store.append(self.log, [], epoch=self.epoch, release=True)
        except SessionError:
            pass  # another sweeper has taken the lease over


def _archive(store: Store, log: Log, head: Head, why: str) -> None:
    """Archive a session. The append takes the lease and gives it back, so it is refused while a turn runs."""
    claim = Claim(holder=encode_holder(store.clock.new_id()), seconds=lease_seconds())
    draft = Draft(type="session.archived", data={"reason": why}, actor="sweep")
    if store.append(log, [draft], claim=claim, release=True, expected=head.head).has_taken_over:
        report_takeover(log)


def _report_failure(due: TenantLog, error: Exception) -> SweptSession:
    """Report a session that could not be swept. Raises the error again if it is one of the whole store."""
    if isinstance(error, StoreError) and not isinstance(error, CorruptLog | WrongKey):
        raise error
    code = error.code if isinstance(error, AgentError) else type(error).__name__
    diagnostics.report(
        logging.WARNING,
        "the sweep could not judge session %(session_id)s (%(code)s): it is put off",
        {"session_id": due.log.id, "code": code},
    )
    return SweptSession(id=due.log.id, tenant=due.tenant, act="failed", why=f"it could not be judged: {code}")


def _preview_session(store: Store, due: TenantLog, now: int, report: SweepReport) -> None:
    report.looked += 1
    try:
        found = _judge_session(store.for_tenant(due.tenant), due.log, now)
    except Exception as error:  # noqa: BLE001 - one bad session or sweep must not stop the next
        report.sessions.append(_report_failure(due, error))
        return
    if found is not None:
        act = {"archive": "archived", "purge": "purged", "keep": "kept"}[found[1].action]
        report.sessions.append(SweptSession(id=due.log.id, tenant=due.tenant, act=act, why=found[1].reason))


def _judge_session(store: Store, log: Log, now: int) -> tuple[Head, SweepDecision] | None:
    """Return the head of a session and the decision that holds for this head; None if the session is gone."""
    try:
        head = store.head(log)
        lease = store.lease(log)
        view = decode_view(head.view)
        retention = store.event(log, view.retention).data if view.retention else {}
    except SessionNotFound:
        return None
    standing = SweepState(
        now=now,
        last_activity=head.updated_at,
        retention=Retention.of(retention),
        archived=view.lifecycle in ("archived", "erased"),
        held=bool(view.held),
        running=lease is not None and lease.is_alive,
        review_reason=view.review_reason,
    )
    return head, decide_sweep(standing)
