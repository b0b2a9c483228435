"""Pruning: takes old messages out of the view that the model sees. The log keeps every message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from holdfast.concurrency import twin
from holdfast.errors import Conflict, InvalidArgument, ViewChanged
from holdfast.log.events import MESSAGE_TYPES, Draft
from holdfast.log.identifiers import check_name
from holdfast.log.ranges import Ranges, append_range, clip_ranges, subtract_ranges
from holdfast.log.view import decode_view
from holdfast.policy.pruning import Strategy, strategy_of
from holdfast.policy.retention import Retention
from holdfast.policy.summary import MAX_BY_RULES

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent
    from holdfast.models.base import Model
    from holdfast.prompt.compaction import CustomStrategy, PrunePlan
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.append import Head
    from holdfast.stores.base import Log, Store

DEFAULT_WINDOW = 128_000
BUDGET_SHARE = 0.8


class Selection(Sequence[int]):
    """Messages, by their seq. It compares as their number (`report.removed == 40`) and reads as the list of their seqs.

    The store is read only when the number or the list is used.
    """

    def __init__(self, store: Store, log: Log, ranges: Ranges) -> None:
        self._store, self._log, self.ranges = store, log, ranges
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = self._store.count(self._log, self.ranges)
        return self._count

    def __bool__(self) -> bool:
        return any(self)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            for row in self._store.walk(self._log, first, last):
                if row.type in MESSAGE_TYPES:
                    yield row.seq

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return list(self)[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return len(self) == other
        if isinstance(other, Sequence):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __int__(self) -> int:
        return len(self)

    def __repr__(self) -> str:
        return f"{len(self)} messages in events {self.ranges}" if self.ranges else "no messages"


class Pruned:
    """The result of a prune or of its dry run: the `removed` and `kept` messages, and the `reasons` for the removed."""

    def __init__(self, store: Store, log: Log, plan: PrunePlan, *, dry_run: bool, seq: int | None) -> None:
        self.strategy, self.dry_run, self.seq = plan.strategy, dry_run, seq
        self.removed, self.kept = Selection(store, log, plan.drop), Selection(store, log, plan.ranges_left)
        self.summary: str | None = None if plan.summary is None else plan.summary["message"].get("text")
        self._store, self._log, self._plan = store, log, plan

    @property
    def reasons(self) -> dict[int, str]:
        """The reason why each message left the view, by its seq."""
        return {
            seq: why for ranges, why in self._plan.drop_reasons for seq in Selection(self._store, self._log, ranges)
        }

    @property
    def kept_because(self) -> dict[int, str]:
        """The reason why each message stays, by its seq; only `keep_important` has a reason for each."""
        return dict(self._plan.keep_reasons or {})

    @property
    def freed_tokens(self) -> int:
        """About how many tokens shorter the conversation is. It comes from running sums, without counting."""
        return sum(self._token_sum(last) - self._token_sum(first - 1) for first, last in self._plan.drop)

    def _token_sum(self, seq: int) -> int:
        rows = self._store.read(self._log, seq, seq) if seq > 0 else []
        return rows[0].tokens if rows else 0

    def __repr__(self) -> str:
        did = "would leave" if self.dry_run else "left"
        return f"<{self.strategy}: {len(self.removed)} messages {did} the view, {len(self.kept)} stay>"


class PruningMethods:
    """The methods of `Session` for pruning: `prune`, `undo_prune`, `prune_if_due`."""

    store: Store
    agent: BaseAgent | None
    log: Log
    cache: SessionCache

    def prune(
        self,
        strategy: str | Callable[..., Any] = "sliding_window",
        *,
        window_size: int | None = None,
        threshold: int | None = None,
        max_tokens: int | None = None,
        dry_run: bool = False,
        agent: BaseAgent | None = None,
        actor: str | None = None,
    ) -> Pruned:
        """Take old messages out of the view; the log keeps them, and `undo_prune` brings them back.

        Strategies: "keep_last_<n>", "sliding_window" (window_size=), "token_budget" (max_tokens=), "summarize_old"
        (threshold=), "keep_important", or a function that takes the messages and returns the messages to keep.
        Two strategies ask the model of `agent=`, else of the session's agent. `summarize_old` asks for the summary;
        without an agent, or if the model fails, rules make a digest instead. `keep_important` decides by rules, and
        also keeps the messages that the model names. A dry run changes nothing and asks for no summary.
        """
        chosen = self._resolve_strategy(strategy, window_size, threshold, max_tokens, agent)
        asked = agent or self.agent
        model = None if asked is None else asked.model
        return self._apply_strategy(chosen, model, dry_run=dry_run, actor=actor)

    def _resolve_strategy(
        self,
        strategy: str | Callable[..., Any],
        window_size: int | None = None,
        threshold: int | None = None,
        max_tokens: int | None = None,
        agent: BaseAgent | None = None,
    ) -> Strategy | CustomStrategy:
        if callable(strategy):
            if (window_size, threshold, max_tokens) != (None, None, None):
                raise InvalidArgument("a strategy of your own takes no window_size, threshold or max_tokens")
            return strategy
        if strategy == "token_budget" and max_tokens is None:
            reader = agent or self.agent
            window = DEFAULT_WINDOW if reader is None else reader.model.context_window
            max_tokens = int(window * BUDGET_SHARE)
        return strategy_of(strategy, window_size=window_size, threshold=threshold, max_tokens=max_tokens)

    def _apply_strategy(
        self,
        strategy: Strategy | CustomStrategy,
        model: Model | None,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        room: int | None = None,
    ) -> Pruned:
        from holdfast.prompt.compaction import plan_prune  # imported late: it imports the model classes

        if actor is not None:
            check_name(actor, "actor", self.store.limits.name)
        while True:
            head = self.store.head(self.log)
            summarizer = None if dry_run else model
            plan = plan_prune(self.store, self.log, head, strategy, model=summarizer, scorer=model, room=room)
            if dry_run or not plan.drop:
                if not dry_run:
                    self._refuse_if_immutable(head)
                return Pruned(self.store, self.log, plan, dry_run=dry_run, seq=None)
            try:
                done = self.store.append(self.log, plan.drafts(actor=actor))
            except ViewChanged:  # another caller cleared, rewound or pruned the session first: plan again
                continue
            return Pruned(self.store, self.log, plan, dry_run=False, seq=done.last)

    def _refuse_if_immutable(self, head: Head) -> None:
        """Raise if the session is immutable, even when there is nothing to prune."""
        from holdfast.stores.append import refuse_altering

        refuse_altering(head, [Draft(type="view.pruned")], self.store.clock.now())

    def undo_prune(self, *, actor: str | None = None) -> bool:
        """Bring back the messages that the newest prune or compaction took out of the view; False if there is none."""
        store, log = self.store, self.log
        while True:
            head = store.head(log)
            view = decode_view(head.view)
            if not view.cuts:
                return False
            seq = view.cuts[-1]
            summaries = [[seq - 1, seq - 1]] if store.event(log, seq).type == "view.compacted" else []
            at = seq - 1 - len(summaries)
            then = clip_ranges(store.view(log, at).visible, at)
            now = clip_ranges(view.visible, head.head)
            if not summaries:  # the prune event is no message: include it, so that the ranges before and after it join
                append_range(then, seq, seq)
            later, _ = subtract_ranges(now, [*then, *summaries])
            ranges = then
            for first, last in later:
                append_range(ranges, first, last)
            draft = Draft(type="view.unpruned", data={"of": seq, "ranges": ranges}, actor=actor)
            try:
                store.append(log, [draft], expected=head.head)
                return True
            except Conflict:
                continue

    # -- automatic pruning -----------------------------------------------------------------------------------------

    def prune_if_due(self) -> None:
        """Prune a session with `auto_prune` back to its `max_messages`.

        Called after every append, so the count of messages continues from the last one.
        """
        head = self.store.head(self.log)
        view = decode_view(head.view)
        retention = self._read_retention(view.retention)
        if not retention.auto_prune or retention.window is None:
            return
        if self._count_visible(head, view.edition) <= retention.window:
            return
        last = f"keep_last_{retention.window}"
        name = retention.strategy or last
        limits = _limits_of(name, retention.window)
        chosen = self._resolve_strategy(name, limits.get("window_size"), limits.get("threshold"))
        room = None if self.agent is None else int(self.agent.model.context_window * BUDGET_SHARE)
        self._apply_strategy(chosen, None, actor="auto_prune", room=None if room is None else min(room, MAX_BY_RULES))
        if name in ("keep_important", "token_budget"):  # these two may leave more messages than the window
            self._apply_strategy(strategy_of(last), None, actor="auto_prune")

    def _read_retention(self, seq: int) -> Retention:
        """Return the retention that event `seq` sets; the empty one for 0. The cache keeps the last one read."""
        if not seq:
            return Retention()
        cached = self.cache.retention
        if cached is None or cached[0] != seq:
            cached = (seq, Retention.of(self.store.event(self.log, seq).data))
            self.cache.retention = cached
        return cached[1]

    def _count_visible(self, head: Head, edition: int) -> int:
        """Count the visible messages. In the same edition of the view, only messages after the last count are read."""
        counted_edition, counted_head, count = self.cache.visible_count
        ranges = clip_ranges(decode_view(head.view).visible, head.head)
        if counted_edition == edition:
            fresh = [[max(first, counted_head + 1), last] for first, last in ranges if last > counted_head]
            count += self.store.count(self.log, fresh)
        else:
            count = self.store.count(self.log, ranges)
        self.cache.visible_count = (edition, head.head, count)
        return count

    prune_async = twin(prune)
    undo_prune_async = twin(undo_prune)


def _limits_of(strategy: str, window: int) -> dict[str, int]:
    """Return the parameter of the strategy that keeps a session within `window` messages."""
    if (
        strategy == "summarize_old"
    ):  # half, so that there is room to grow: else every new message would make a new summary
        return {"threshold": max(1, window // 2)}
    return {"window_size": window} if strategy == "sliding_window" else {}
