"""The sweep: what retention promises, carried out. Sessions are archived, and purged when their time has passed.

One sweeper works at a time, under a lease on a log of its own, in which it writes what it is about to purge before it
does, and what came of it. Every session is judged on what one reading of it says, and the act is refused if the session
has moved since: a turn that begins meanwhile wins. A sweeper that dies leaves each session whole or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import crashpoint
from holdfast.errors import (
    Conflict,
    ImmutableSession,
    InvalidArgument,
    LifecycleError,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionHeld,
    SessionNotFound,
)
from holdfast.log.events import Draft
from holdfast.log.view import view_of
from holdfast.policy.retention import Retention, Standing, Verdict, judge
from holdfast.stores.append import Head
from holdfast.stores.base import Due, Log, Store
from holdfast.stores.lease import Claim, holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal

BATCH = 200
REST = 2.0  # times what an act took
LONGEST_PAUSE = 0.1
KIND, ID = "sweep", "sweep"
NEXT_LOOK = 60_000_000  # microseconds, after something was in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What happened to one session, or would."""

    id: str
    tenant: str
    act: str  # archived, purged or kept
    why: str


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """What a sweep did. `busy`: another sweeper is at work, nothing was done."""

    dry_run: bool = False
    busy: bool = False
    looked: int = 0
    sessions: list[Swept] = field(default_factory=list)

    @property
    def archived(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "archived"]

    @property
    def purged(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "purged"]

    @property
    def kept(self) -> list[str]:
        return [each.id for each in self.sessions if each.act == "kept"]


def sweep(
    store: Store,
    *,
    dry_run: bool = False,
    batch: int = BATCH,
    on_batch: Callable[[SweepReport], None] | None = None,
) -> SweepReport:
    """Look at every session that is due, in batches, and do what its retention says. Of every tenant, if the store is
    bound to none. A dry run changes nothing and says what would happen."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidArgument(f"batch={batch!r}: use a whole number above 0")
    report = SweepReport(dry_run=dry_run)
    if dry_run:
        now = store.ids.now()
        for due in store.due(now, limit=1_000_000):
            _look(store, due, now, report)
        return report
    sweeper = _Sweeper.begin(store)
    if sweeper is None:
        report.busy = True
        return report
    with sweeper.renewal:
        try:
            for page in sweeper.batches(batch):
                sweeper.sweep(page, report)
                if on_batch is not None:
                    on_batch(report)
        finally:
            sweeper.end()
    if report.purged:
        store.tidy()
    return report


class _Sweeper:
    """One sweep under its lease."""

    def __init__(self, store: Store, log: Log, epoch: int) -> None:
        self.store, self.log, self.epoch = store, log, epoch
        self.renewal = Renewal(store, log, epoch)
        self.now = store.ids.now()

    @classmethod
    def begin(cls, store: Store) -> _Sweeper | None:
        log = store.find(KIND, ID)
        if log is None:
            try:
                log = store.create(KIND, ID, [Draft(type="entity.created")])
            except SessionExists:
                log = store.require(KIND, ID)
        claim = Claim(holder=holder(store.ids.new()), seconds=lease_seconds())
        try:
            return cls(store, log, store.append(log, [], claim=claim).epoch)
        except SessionBusy:
            return None

    def batches(self, size: int) -> Iterator[list[Due]]:
        """What is due, until nothing is. Whatever was looked at is not due any more, so each comes once."""
        seen: set[int] = set()
        while due := [each for each in self.store.due(self.now, limit=size) if each.log.number not in seen]:
            seen |= {each.log.number for each in due}
            yield due

    def sweep(self, due: list[Due], report: SweepReport) -> None:
        """One batch: judge, write down what will be purged, act, write down what came of it."""
        judged = []
        for each in due:
            found = _judged(self.store.for_tenant(each.tenant), each.log, self.now)
            report.looked += 1
            if found is not None:
                judged.append((each, *found))
        purges = [self._stone(each, head) for each, head, verdict in judged if verdict.act == "purge"]
        if purges:
            self.store.append(self.log, [Draft(type="sweep.planned", data={"purge": purges})], epoch=self.epoch)
        crashpoint("sweep planned")
        before = len(report.sessions)
        for each, head, verdict in judged:
            self.renewal.check()
            began = self.store.ids.elapsed()
            report.sessions.append(self._act(each, head, verdict))
            crashpoint("swept one")
            # Turns get their word in: of every stretch of time the sweep writes for a third at most.
            self.store.ids.sleep(min(LONGEST_PAUSE, REST * (self.store.ids.elapsed() - began)))
        done = report.sessions[before:]
        acts = {act: sum(each.act == act for each in done) for act in ("archived", "purged", "kept")}
        if acts["archived"] or acts["purged"]:
            self.store.append(self.log, [Draft(type="sweep.finished", data=acts)], epoch=self.epoch)

    def _stone(self, due: Due, head: Head) -> dict[str, Any]:
        """What stays of a session that is purged: its head's hash, which no other log can have."""
        log = due.log
        return {"id": log.id, "tenant": due.tenant, "uid": log.uid, "head": head.head, "hash": head.hash.hex()}

    def _act(self, due: Due, head: Head, verdict: Verdict) -> Swept:
        store, log = self.store.for_tenant(due.tenant), due.log
        act, why = "kept", verdict.why
        again = verdict.due
        try:
            if verdict.act == "archive":
                _archive(store, log, head, why)
                act = "archived"
            elif verdict.act == "purge":
                store.remove(log.kind, log.id, expected=head.head)
                return Swept(id=log.id, tenant=due.tenant, act="purged", why=why)
        except SessionNotFound:
            return Swept(id=log.id, tenant=due.tenant, act="kept", why="it was deleted meanwhile")
        except (Conflict, SessionBusy):
            why, again = "it was used meanwhile", self.now + NEXT_LOOK
        except (SessionHeld, ImmutableSession, LifecycleError, SessionError) as error:
            why, again = str(error), self.now + NEXT_LOOK
        store.put_off(log, again if again is None or again > self.now else self.now + 1)
        return Swept(id=log.id, tenant=due.tenant, act=act, why=why)

    def end(self) -> None:
        try:
            self.store.append(self.log, [], epoch=self.epoch, release=True)
        except SessionError:
            pass  # taken over: the lease is somebody else's


def _archive(store: Store, log: Log, head: Head, why: str) -> None:
    """In the same append the lease is taken and given back: it is refused while somebody is at work."""
    claim = Claim(holder=holder(store.ids.new()), seconds=lease_seconds())
    draft = Draft(type="session.archived", data={"reason": why}, actor="sweep")
    store.append(log, [draft], claim=claim, release=True, expected=head.head)


def _look(store: Store, due: Due, now: int, report: SweepReport) -> None:
    found = _judged(store.for_tenant(due.tenant), due.log, now)
    report.looked += 1
    if found is not None:
        act = {"archive": "archived", "purge": "purged", "keep": "kept"}[found[1].act]
        report.sessions.append(Swept(id=due.log.id, tenant=due.tenant, act=act, why=found[1].why))


def _judged(store: Store, log: Log, now: int) -> tuple[Head, Verdict] | None:
    """What should become of a session, and the head that this holds for; None if it is gone."""
    try:
        head = store.head(log)
        lease = store.lease(log)
        view = view_of(head.view)
        retention = store.event(log, view.retention).data if view.retention else {}
    except SessionNotFound:
        return None
    standing = Standing(
        now=now,
        last_activity=head.updated_at,
        retention=Retention.of(retention),
        archived=view.life in ("archived", "erased"),
        held=bool(view.held),
        running=lease is not None and lease.alive,
        unsettled=view.unsettled,
    )
    return head, judge(standing)
