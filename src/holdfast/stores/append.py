"""The plan of one append, made before anything is written. The functions are pure, so that all stores decide alike.

The order of the checks is a promise: the idempotency key first (a known key gives the first outcome, for any head and
epoch), then limits, then the fence, then the head, then the rules of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import (
    Conflict,
    ImmutableSession,
    InvalidArgument,
    KeyReused,
    LifecycleError,
    LimitExceeded,
    SessionBusy,
    SessionHeld,
    StaleEpoch,
)
from holdfast.log import chain, codec
from holdfast.log.events import MESSAGE_TYPES, PAYLOAD_AT, SALT_SIZE, VERSIONS, Draft, Row, unpack_header
from holdfast.log.messages import Limits
from holdfast.log.named_values import MEMORY_PREFIX, NAMING_TYPES, NameRow, columns_of, names_of
from holdfast.log.times import days_to_microseconds
from holdfast.log.view import ENDED, MOVES, REFUSED_WHEN_ENDED, TURN_ENDS, View, changes_view, decode_view
from holdfast.stores.lease import Claim, Lease

if TYPE_CHECKING:
    from holdfast.stores.base import Fork

# What an immutable session refuses until its time has passed. A turn's own compaction is none of it: that only keeps
# the prompt within the model's window.
_ALTERING_TYPES = {
    "event.redacted": "redact an event of",
    "view.cleared": "clear",
    "view.compacted": "prune",
    "view.pruned": "prune",
    "view.restored": "overwrite",
    "view.rewound": "rewind",
    "view.unpruned": "undo a prune of",
}
# What is done to a session rather than in it: none of it is activity, so none of it makes the session live longer.
MAINTENANCE = frozenset(
    (
        "event.redacted",
        "retention.set",
        "session.archived",
        "session.erased",
        "session.held",
        "session.released",
        "summary.added",
        "view.compacted",
        "view.pruned",
        "view.unpruned",
    )
)
RETENTION_TYPES = frozenset(("retention.set", "session.held", "session.released", "session.reopened", "session.erased"))
_RARE = frozenset(_ALTERING_TYPES) | MAINTENANCE | RETENTION_TYPES
_ENDED = tuple(f'"{status}"'.encode() for status in ENDED)  # as the bytes of a view have it
SNAPSHOT_EVERY = 64  # marked events; so the view at any past point folds at most this many
MAX_PAYLOAD = 32 << 20
MAX_SEQ = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a log stands: everything that an append reads and moves."""

    head: int
    hash: bytes
    epoch: int
    tokens: int
    view: bytes
    busy: bool  # `View.is_restricted`: an append must read the view
    marks: int  # marked events since the last snapshot
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """What an idempotency key stands for."""

    digest: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The outcome of an append: the numbers its events got, and the epoch that holds now."""

    first: int
    last: int
    epoch: int
    repeated: bool = False  # the same key had stored this before
    at: int = 0
    has_retention: bool = False  # the session has a retention, which may ask for more
    has_queued_runs: bool = False  # something is to be run in the session
    has_taken_over: bool = False  # the claim ended the lease of a process that is dead or was silent for too long


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One append as it was asked for, its payloads encoded."""

    drafts: Sequence[Draft]
    encoded: Sequence[bytes]
    idempotency_key: str | None
    epoch: int | None
    expected: int | None
    claim: Claim | None
    release: bool

    @property
    def digest(self) -> bytes:
        """What the key stands for. Of a message that is admitted and run in one append, only the message: the same key
        may admit it again without running it."""
        compared = self.compared_drafts
        return chain.content_digest(compared, self.encoded[: len(compared)])

    @property
    def compared_drafts(self) -> Sequence[Draft]:
        return self.drafts[:1] if self.drafts and self.drafts[0].type == "message.queued" else self.drafts


class RetentionRow(NamedTuple):
    """How long a log is kept, as the sweep looks it up and the triggers guard it; a fold of its events."""

    ttl: int | None  # microseconds after the last activity
    immutable: bool
    held: bool
    last_active_at: int  # when the last activity was


@dataclass(slots=True)
class AppendBatch:
    """Everything that one append writes, in one transaction."""

    outcome: AppendResult
    head: Head
    before: Head
    rows: list[Row] = field(default_factory=list)
    changes_view: list[bool] = field(default_factory=list)
    names: list[NameRow] = field(default_factory=list)
    memories: list[str] = field(default_factory=list)  # those of the names that are memories
    blobs: dict[str, bytes] = field(default_factory=dict)
    idempotency: tuple[str, IdempotencyRecord] | None = None
    snapshot: bytes | None = None  # of the view after this batch
    changed_columns: dict[str, Any] | None = None  # changed columns of the session's row
    retention_row: RetentionRow | None = None  # what the sweep and the triggers must know, if that changed
    last_active_at: int | None = None  # when an immutable session was last active: the triggers count from it
    has_queued_runs: bool | None = None  # whether something is to be run here now, if that changed
    claim: Claim | None = None
    release: bool = False

    @property
    def is_simple(self) -> bool:
        """Only events and names: the common case, which a store may write in one statement."""
        special = (
            self.blobs,
            self.memories,
            self.idempotency,
            self.snapshot,
            self.changed_columns,
            self.claim,
            self.release,
            self.retention_row,
            self.last_active_at,
        )
        return self.has_queued_runs is None and not any(special)


def check_append(
    drafts: Sequence[Draft],
    *,
    limits: Limits,
    once: str | None = None,
    epoch: int | None = None,
    expected: int | None = None,
    claim: Claim | None = None,
    release: bool = False,
) -> AppendRequest:
    """Encode and check what was asked for, before anything is locked."""
    encoded = chain.encode_payloads(drafts)
    for draft, payload in zip(drafts, encoded, strict=True):
        if draft.type not in VERSIONS:
            raise InvalidArgument(f"unknown event type {draft.type!r}")
        if len(payload) > limits.state_value and draft.type == "state.set":
            size = len(codec.encode(draft.data["value"]))
            if size > limits.state_value:
                raise LimitExceeded(
                    "a state value", size=size, limit=limits.state_value, hint="keep files in message parts"
                )
        if len(payload) > MAX_PAYLOAD:
            raise LimitExceeded("an event", size=len(payload), limit=MAX_PAYLOAD, hint="split it")
        for name in (draft.run, draft.branch, draft.author, draft.actor):
            if name is not None:
                codec.text_bytes(name, "author, actor, run or branch", limits.name)
    if not drafts and claim is None and not release:
        raise InvalidArgument("an append needs at least one event")
    if once is not None:
        codec.text_bytes(once, "an idempotency key", limits.name)
    return AppendRequest(drafts, encoded, once, epoch, expected, claim, release)


def repeat_outcome(
    session_id: str, asked: AppendRequest, same: bool, first: int, last: int, epoch: int
) -> AppendResult:
    """The first outcome of a key that was used before, if it was used for the same."""
    if not same:
        raise KeyReused(session_id, asked.idempotency_key or "")
    return AppendResult(first=first, last=last, epoch=epoch, repeated=True)


def agrees_with_remains(asked: AppendRequest, first: int, rows: Sequence[Row]) -> bool:
    """Whether an append agrees with the events that its key stored from `first` on, after content of them was erased.

    A digest of the content would let a short text be guessed, so none is kept. What is left is compared: types, turns,
    authors, and the sizes of messages. The event before the first is among the rows if the log has it.
    """
    drafts = asked.compared_drafts
    tokens = {row.seq: row.tokens for row in rows}
    stored = [row for row in rows if row.seq >= first]
    return len(stored) >= len(drafts) and all(
        _agrees(draft, payload, row, tokens.get(row.seq - 1))
        for draft, payload, row in zip(drafts, asked.encoded, stored, strict=False)
    )


def _agrees(draft: Draft, payload: bytes, row: Row, tokens_before: int | None) -> bool:
    header = (VERSIONS[draft.type], draft.run, draft.branch, draft.author, draft.actor)
    if row.type != draft.type or unpack_header(row.header) != header:
        return False
    if row.body is not None:
        return row.body[PAYLOAD_AT:] == payload
    if draft.type not in MESSAGE_TYPES or tokens_before is None:
        return True
    return row.tokens - tokens_before == chain.estimate_tokens(len(payload))


def plan_append(
    session_id: str, before: Head, asked: AppendRequest, *, lease: Lease | None, at: int, random: Callable[[int], bytes]
) -> AppendBatch:
    """Decide what an append writes, or refuse it. The key was looked up already and not found."""
    epoch = before.epoch
    drafts = asked.drafts
    rare = [draft for draft in drafts if draft.type in _RARE]
    if rare:
        refuse_altering(before, rare, at)
    if asked.epoch is not None and asked.epoch != epoch:
        raise StaleEpoch(session_id, epoch=asked.epoch, current=epoch)
    if asked.claim is not None:
        if lease is not None and lease.is_alive and asked.epoch is None:
            raise SessionBusy(session_id, retry_after=lease.remaining)
        epoch += 1
    if asked.expected is not None and asked.expected != before.head:
        raise Conflict(session_id, expected=asked.expected, head=before.head)
    if before.busy and any(status in before.view for status in _ENDED):
        _refuse_ended(before, asked)
    rows = chain.chain_rows(
        drafts,
        asked.encoded,
        head=before.head,
        hash=before.hash,
        tokens=before.tokens,
        at=at,
        salts=random(SALT_SIZE * len(drafts)),
    )
    busy = before.busy
    marked = []
    for draft in drafts:
        marked.append(changes_view(draft.type, draft.run) or (busy and draft.type in MESSAGE_TYPES))
        busy = draft.type == "turn.started" or (busy and draft.type not in TURN_ENDS)
    names: list[NameRow] = []
    blobs: dict[str, bytes] = {}
    session: dict[str, Any] = {}
    for draft, row in zip(drafts, rows, strict=True):
        if draft.type in NAMING_TYPES:
            names += names_of(row.seq, draft.type, draft.data)
            session |= columns_of(draft.type, draft.data)
        if draft.blobs:
            blobs |= draft.blobs
    view, marks, snapshot, keep, work = before.view, before.marks, None, None, None
    if any(marked):
        folded = decode_view(view)
        status, had_work = folded.status, bool(folded.queue)
        for draft, row in zip(drafts, rows, strict=True):
            folded.apply(row.seq, draft.type, draft.run, draft.data, draft.branch)
        view, busy = folded.to_bytes(), folded.is_restricted
        if any(draft.type in RETENTION_TYPES for draft in rare):
            keep = make_retention_row(folded, before.updated_at)
        marks += sum(marked)
        if marks >= SNAPSHOT_EVERY:
            marks, snapshot = 0, view
        if folded.status != status:
            session["status"] = folded.status
        if bool(folded.queue) != had_work:
            work = not had_work
    last = rows[-1] if rows else None
    head = Head(
        head=last.seq if last else before.head,
        hash=last.hash if last else before.hash,
        epoch=epoch,
        tokens=last.tokens if last else before.tokens,
        view=view,
        busy=busy,
        marks=marks,
        updated_at=_last_activity(before.updated_at, at, drafts, rare),
    )
    outcome = AppendResult(
        first=before.head + 1,
        last=head.head,
        epoch=epoch,
        at=at,
        has_retention=b'"retention":' in view,
        has_queued_runs=b'"queue":' in view,
        has_taken_over=asked.claim is not None and asked.epoch is None and lease is not None,
    )
    once = None
    if asked.idempotency_key is not None:
        once = (asked.idempotency_key, IdempotencyRecord(digest=asked.digest, first=outcome.first, last=outcome.last))
    return AppendBatch(
        outcome=outcome,
        head=head,
        before=before,
        rows=rows,
        changes_view=marked,
        names=names,
        memories=[name for name, _, ref in names if ref is not None and name.startswith(MEMORY_PREFIX)],
        blobs=blobs,
        idempotency=once,
        snapshot=snapshot,
        changed_columns=session or None,
        retention_row=keep,
        last_active_at=head.updated_at if b'"immutable":true' in view else None,
        has_queued_runs=work,
        claim=asked.claim,
        release=asked.release,
    )


def _last_activity(before: int, at: int, drafts: Sequence[Draft], rare: Sequence[Draft]) -> int:
    """Return the time of the last activity. It never goes back: a process whose clock is behind must not make a session
    older than it is."""
    return max(before, at) if len(drafts) > sum(draft.type in MAINTENANCE for draft in rare) else before


def _refuse_ended(before: Head, asked: AppendRequest) -> None:
    """Raise LifecycleError if the session has ended and does not take one of these events.

    An erased session takes nothing but the record of an import. A closed or archived one takes no content, except from
    a turn that was running when the session was closed: such a turn writes under its lease.
    """
    view = decode_view(before.view)
    if view.lifecycle == "erased" and any(draft.type != "session.imported" for draft in asked.drafts):
        raise LifecycleError("write to", status="erased", legal=())
    if view.lifecycle in ENDED and asked.epoch is None:
        for draft in asked.drafts:
            if draft.run is None and draft.type in REFUSED_WHEN_ENDED:
                raise LifecycleError(REFUSED_WHEN_ENDED[draft.type], status=view.status, legal=MOVES[view.status])


def make_retention_row(view: View, active: int) -> RetentionRow:
    return RetentionRow(ttl=view.ttl, immutable=view.immutable, held=bool(view.held), last_active_at=active)


def expiry(view: View, updated_at: int) -> int | None:
    """When the time of a session has passed; None: never."""
    return None if view.ttl is None else updated_at + view.ttl


def is_locked(view: View, updated_at: int, now: int) -> bool:
    """Whether a session is immutable and its time has not passed."""
    until = expiry(view, updated_at)
    return view.immutable and (until is None or now < until)


def refuse_altering(before: Head, drafts: Sequence[Draft], now: int) -> None:
    """Raise if the session is immutable, or held, and these would change what it shows or lasts."""
    view = decode_view(before.view)
    locked, until = is_locked(view, before.updated_at, now), expiry(view, before.updated_at)
    for draft in drafts:
        if draft.type == "event.redacted" and view.held:
            raise SessionHeld("redact an event of", reason=f"event {view.held} says why")
        told = draft.type == "event.redacted" and "by" in draft.data  # of what another session erased
        if not locked or told or (draft.type == "view.compacted" and draft.run is not None):
            continue
        if draft.type in _ALTERING_TYPES:
            raise ImmutableSession(_ALTERING_TYPES[draft.type], until=until)
        if draft.type != "retention.set":
            continue
        ttl = draft.data.get("ttl_days")
        shorter = ttl is not None and (view.ttl is None or days_to_microseconds(ttl) < view.ttl)
        if shorter or not draft.data.get("immutable"):
            raise ImmutableSession("shorten or weaken the retention of", until=until)


def refuse_removal(id: str, head: Head, lease: Lease | None, now: int) -> None:
    """Raise if a log must not be removed now: it is held, immutable, or a process has its lease."""
    view = decode_view(head.view)
    if view.held:
        raise SessionHeld("delete", reason=f"event {view.held} says why")
    if is_locked(view, head.updated_at, now):
        raise ImmutableSession("delete", until=expiry(view, head.updated_at))
    if lease is not None and lease.is_alive:
        raise SessionBusy(id, retry_after=lease.remaining)


def first_head(origin: str, at: int) -> Head:
    """The head of a log before its first event."""
    return Head(
        head=0,
        hash=chain.genesis(origin),
        epoch=0,
        tokens=0,
        view=View().to_bytes(),
        busy=False,
        marks=0,
        updated_at=at,
    )


def head_of_fork(fork: Fork, now: int) -> Head:
    """The head of a fork before its first event: the parent's past, with a life of its own."""
    view = replace(fork.view)
    view.reset_for_fork()
    return Head(
        head=fork.at,
        hash=fork.hash,
        epoch=0,
        tokens=fork.tokens,
        view=view.to_bytes(),
        busy=False,
        marks=0,
        updated_at=now,
    )
