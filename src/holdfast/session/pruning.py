"""Pruning: what the model sees of a long session, changed without touching its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from holdfast.concurrency import twin
from holdfast.errors import Conflict, InvalidArgument, ViewChanged
from holdfast.log.events import MESSAGE_TYPES, Draft
from holdfast.log.identifiers import checked_name
from holdfast.log.view import Ranges, cut, join, subtract, view_of
from holdfast.policy.pruning import Strategy, strategy_of
from holdfast.policy.retention import Retention
from holdfast.policy.summary import MAX_BY_RULES

if TYPE_CHECKING:
    from holdfast.agent_base import Askable
    from holdfast.models.base import Model
    from holdfast.prompt.compaction import Custom, Cut
    from holdfast.stores.append import Head
    from holdfast.stores.base import Log, Store

DEFAULT_WINDOW = 128_000
BUDGET_SHARE = 0.8


class Selection(Sequence[int]):
    """Messages by their seq: a number of them (`report.removed == 40`) that can also be listed, read when it is."""

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
    """What a prune did, or would do: `removed` and `kept` messages, and `reasons`, why for each that left the view."""

    def __init__(self, store: Store, log: Log, plan: Cut, *, dry_run: bool, seq: int | None) -> None:
        self.strategy, self.dry_run, self.seq = plan.strategy, dry_run, seq
        self.removed, self.kept = Selection(store, log, plan.drop), Selection(store, log, plan.kept)
        self.summary: str | None = None if plan.summary is None else plan.summary["message"].get("text")
        self._store, self._log, self._plan = store, log, plan

    @property
    def reasons(self) -> dict[int, str]:
        """Why each message left, by its seq."""
        return {seq: why for ranges, why in self._plan.why for seq in Selection(self._store, self._log, ranges)}

    @property
    def kept_because(self) -> dict[int, str]:
        """Why each message stays, where the strategy has a reason for each (`keep_important`)."""
        return dict(self._plan.reasons or {})

    @property
    def freed_tokens(self) -> int:
        """About how many tokens shorter the conversation is: from running sums, so nothing is counted."""
        return sum(self._sum(last) - self._sum(first - 1) for first, last in self._plan.drop)

    def _sum(self, seq: int) -> int:
        rows = self._store.read(self._log, seq, seq) if seq > 0 else []
        return rows[0].tokens if rows else 0

    def __repr__(self) -> str:
        did = "would leave" if self.dry_run else "left"
        return f"<{self.strategy}: {len(self.removed)} messages {did} the view, {len(self.kept)} stay>"


class Pruning:
    """The methods of a session that change what is visible of it."""

    store: Store
    agent: Askable | None
    _log: Log

    def prune(
        self,
        strategy: str | Callable[..., Any] = "sliding_window",
        *,
        window_size: int | None = None,
        threshold: int | None = None,
        max_tokens: int | None = None,
        dry_run: bool = False,
        agent: Askable | None = None,
        actor: str | None = None,
    ) -> Pruned:
        """Take old messages out of the view; the log keeps them, and `undo_prune` brings them back.

        Strategies: "keep_last_<n>", "sliding_window" (window_size=), "token_budget" (max_tokens=), "summarize_old"
        (threshold=), "keep_important", or a function of the messages that gives those to keep. `summarize_old` asks the
        session's agent, or `agent=`, for the summary; without one, or if it fails, the summary is a digest made by
        rules. `keep_important` decides by rules, and with `agent=` keeps what that model names as well.
        """
        chosen = self._strategy(strategy, window_size, threshold, max_tokens, agent)
        model = agent.model if agent is not None else None
        writer = model if model is not None else None if self.agent is None else self.agent.model
        return self._pruned(chosen, writer, model, dry_run=dry_run, actor=actor)

    def _strategy(
        self,
        strategy: str | Callable[..., Any],
        window_size: int | None = None,
        threshold: int | None = None,
        max_tokens: int | None = None,
        agent: Askable | None = None,
    ) -> Strategy | Custom:
        if callable(strategy):
            if (window_size, threshold, max_tokens) != (None, None, None):
                raise InvalidArgument("a strategy of your own takes no window_size, threshold or max_tokens")
            return strategy
        if strategy == "token_budget" and max_tokens is None:
            asked = agent or self.agent
            window = DEFAULT_WINDOW if asked is None else asked.model.context_window
            max_tokens = int(window * BUDGET_SHARE)
        return strategy_of(strategy, window_size=window_size, threshold=threshold, max_tokens=max_tokens)

    def _pruned(
        self,
        strategy: Strategy | Custom,
        writer: Model | None,
        scorer: Model | None,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        room: int | None = None,
    ) -> Pruned:
        from holdfast.prompt.compaction import plan_cut  # with it comes what knows of models

        if actor is not None:
            checked_name(actor, "actor", self.store.limits.name)
        while True:
            head = self.store.head(self._log)
            asked = None if dry_run else writer
            plan = plan_cut(self.store, self._log, head, strategy, model=asked, scorer=scorer, room=room)
            if dry_run or not plan.drop:
                if not dry_run:
                    self._refuse_if_immutable(head)
                return Pruned(self.store, self._log, plan, dry_run=dry_run, seq=None)
            try:
                done = self.store.append(self._log, plan.drafts(actor=actor))
            except ViewChanged:  # cleared, rewound or pruned by somebody else: look again
                continue
            return Pruned(self.store, self._log, plan, dry_run=False, seq=done.last)

    def _refuse_if_immutable(self, head: Head) -> None:
        """An immutable session says so, even when there would have been nothing to prune."""
        from holdfast.stores.append import refuse_altering

        refuse_altering(head, [Draft(type="view.pruned")], self.store.ids.now())

    def undo_prune(self, *, actor: str | None = None) -> bool:
        """Bring back what the newest prune or compaction took out of the view; False if there is none to undo."""
        store, log = self.store, self._log
        while True:
            head = store.head(log)
            view = view_of(head.view)
            if not view.cuts:
                return False
            seq = view.cuts[-1]
            summaries = [[seq - 1, seq - 1]] if store.event(log, seq).type == "view.compacted" else []
            at = seq - 1 - len(summaries)
            then = cut(store.view(log, at).visible, at)
            now = cut(view.visible, head.head)
            if not summaries:  # the prune itself is no message, so what it parted grows together
                join(then, seq, seq)
            later, _ = subtract(now, [*then, *summaries])
            ranges = then
            for first, last in later:
                join(ranges, first, last)
            draft = Draft(type="view.unpruned", data={"of": seq, "ranges": ranges}, actor=actor)
            try:
                store.append(log, [draft], expected=head.head)
                return True
            except Conflict:
                continue

    # -- as messages arrive ----------------------------------------------------------------------------------------

    def _prune_if_asked(self) -> None:
        """Keep a session with `auto_prune` within its `max_messages`. The count goes on from the last one."""
        head = self.store.head(self._log)
        view = view_of(head.view)
        retention = self._read_retention(view.retention)
        if not retention.auto_prune or retention.window is None:
            return
        if self._count_visible(head, view.edition) <= retention.window:
            return
        last = f"keep_last_{retention.window}"
        name = retention.strategy or last
        limits = _limits_of(name, retention.window)
        chosen = self._strategy(name, limits.get("window_size"), limits.get("threshold"))
        room = None if self.agent is None else int(self.agent.model.context_window * BUDGET_SHARE)
        self._pruned(chosen, None, None, actor="auto_prune", room=None if room is None else min(room, MAX_BY_RULES))
        if name in ("keep_important", "token_budget"):  # which may leave more than the window
            self._pruned(strategy_of(last), None, None, actor="auto_prune")

    def _read_retention(self, seq: int) -> Retention:
        """What event `seq` says, whoever set it; read again only when it is another one."""
        known: tuple[int, Retention] = getattr(self, "_retained", (0, Retention()))
        if known[0] != seq:
            known = (seq, Retention.of(self.store.event(self._log, seq).data))
            self._retained = known
        return known[1]

    def _count_visible(self, head: Head, edition: int) -> int:
        known, at, count = getattr(self, "_counted", (-1, 0, 0))
        ranges = cut(view_of(head.view).visible, head.head)
        if known == edition:
            fresh = [[max(first, at + 1), last] for first, last in ranges if last > at]
            count += self.store.count(self._log, fresh)
        else:
            count = self.store.count(self._log, ranges)
        self._counted = (edition, head.head, count)
        return count

    prune_async = twin(prune)


def _limits_of(strategy: str, window: int) -> dict[str, int]:
    """The parameter of a strategy that keeps a session within its window."""
    if strategy == "summarize_old":  # with room to grow: a summary for every message would be longer than it
        return {"threshold": max(1, window // 2)}
    return {"window_size": window} if strategy == "sliding_window" else {}
