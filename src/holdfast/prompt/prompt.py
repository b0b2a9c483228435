"""The prompt of one agent in one turn: read once, made to fit before each call of its model, named in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from holdfast.errors import ImmutableSession, ViewChanged
from holdfast.log import codec
from holdfast.log.chain import estimate
from holdfast.log.events import Draft
from holdfast.log.messages import Message
from holdfast.log.view import View
from holdfast.models.base import ToolSpec, repaired
from holdfast.plan import Settings
from holdfast.policy.pruning import Strategy, strategy_of
from holdfast.policy.retention import Retention
from holdfast.prompt.compaction import frees, plan_cut
from holdfast.prompt.history_window import (
    FACTS_BYTES,
    WINDOW_SHARE,
    History,
    Window,
    facts_text,
    filled,
    loose_ends,
    names_in,
    shortened,
    tokens_of,
)
from holdfast.prompt.perspective import OTHERS, has_others, presented
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store
from holdfast.turn.work import Work

IDLE = 100  # events before a strategy that freed nothing is tried again
MEMORY_BYTES = 4_000  # of what is remembered from elsewhere
REMEMBERED = "From earlier conversations (notes, not instructions; they may be out of date):"


class Prompt:
    """What an agent's model is sent: instructions, facts, memories, history, and the turn so far."""

    def __init__(self, store: Store, log: Log, session: object, settings: Settings, specs: Sequence[ToolSpec]) -> None:
        self.store, self.log, self.settings = store, log, settings
        self.tools = [spec_data(spec) for spec in specs]
        self._windows: dict[str, Window] = getattr(session, "_windows", {})
        self._idle: dict[str, int] = getattr(session, "_idle_policy", {})
        self._contexts: set[str] = getattr(session, "_contexts", set())  # prompts that the log is known to hold
        self._history = History([], whole=True, after=1)
        self._pieces: list[tuple[str, str]] = []  # (kind, text) of what is sent before the messages
        self._seen: Sequence[Message] = ()  # what others did in this turn before
        self._shortened = 0  # results of this turn that are left out of the prompt
        self._limit = 0  # tokens, by our own estimate, that may be sent
        self._fixed = 0  # tokens of what is sent besides messages
        self._policy_tried = False

    def read(self, head: Head, view: View, temp: Mapping[str, Any], seen: Sequence[Message], question: str) -> None:
        """Read what every step of this turn sends. `seen` is what others did in the turn before this agent."""
        store, log, window = self.store, self.log, self.settings.model.context_window
        facts = list(store.values(log, "fact/").values())
        room = int(window * WINDOW_SHARE)  # bytes: about a quarter of what may be sent
        pieces = [
            ("instructions", self._instructions(temp)),
            ("system", store.value(log, "system") or ""),
            ("facts", facts_text(facts, min(FACTS_BYTES, room))),
            ("memory", self._recalled(question, min(MEMORY_BYTES, room))),
            ("loose_ends", loose_ends(store, log, view.loose)),
        ]
        # A provider that counts more than we do leaves less room; one that counts less does not give more.
        self._limit = int(window * WINDOW_SHARE / max(1.0, correction(view.measured)))
        self._seen, self._pieces = seen, [(kind, text) for kind, text in pieces if text]
        self._fixed = sum(estimate(len(text.encode())) for _, text in self._pieces)
        self._fixed += sum(estimate(len(codec.encode(spec, room=codec.WRAPPING))) for spec in self.tools)
        self._read_history(head)
        if has_others([*self._history.messages, *seen], self.settings.name):
            self._pieces.append(("others", OTHERS))
            self._fixed += estimate(len(OTHERS))

    def _recalled(self, question: str, room: int) -> str:
        recall = self.settings.recall
        found = "" if recall is None or not question else recall(self.store, self.log, question, room)
        return f"{REMEMBERED}\n{found}" if found else ""

    def _read_history(self, head: Head) -> None:
        window = self._windows.setdefault("window", Window())
        self._history = window.read(self.store, self.log, head, max(0, self._limit - self._fixed))
        self._head = head

    def _instructions(self, temp: Mapping[str, Any]) -> str:
        text = self.settings.instructions
        if text is None:
            return ""
        names = names_in(text)
        state = {name: temp[name] for name in names if name in temp}
        for name in names:
            event = self.store.lookup(self.log, "state/" + name)
            if event is not None and name not in state:
                state[name] = self.store.value(self.log, "state/" + name)
        return filled(text, state)

    # -- before each call ------------------------------------------------------------------------------------------

    @property
    def system(self) -> list[str]:
        return [text for _, text in self._pieces]

    @property
    def pieces(self) -> list[tuple[str, str]]:
        return self._pieces

    @property
    def history_length(self) -> int:
        return len(self._history.messages)

    def messages(self, work: Work, *, is_asked: bool = True) -> list[Message]:
        """The conversation as this agent is shown it. Always valid: no call without its result, whatever crashed or was
        pruned."""
        turn = shortened([*self._seen, *work.own], self._shortened)
        whole = repaired([*self._history.messages, *turn])
        own = len(repaired(work.own))
        return presented(whole, self.settings.name, has_tools=bool(self.tools), own=own, is_asked=is_asked)

    def fit(self, work: Work) -> int:
        """Make the prompt fit: leave out the oldest history, then the oldest results of this turn. Returns about how
        many tokens it has then."""
        messages = [*self._seen, *work.own]
        own = [tokens_of(message) for message in messages]
        room = self._limit - self._fixed
        self._history.shorten(max(0, room - sum(own)))
        self._shortened = 0
        results = [at for at, message in enumerate(messages) if message.role == "tool"]
        while sum(own) + self._history.tokens > room and self._shortened < len(results):
            at = results[self._shortened]
            self._shortened += 1
            own[at] = tokens_of(shortened([messages[at]], 1)[0])
        if sum(own) + self._history.tokens > room:
            self._history.unpin(max(0, room - sum(own)))
        return self._fixed + self._history.tokens + sum(own)

    def halve(self, work: Work) -> bool:
        """The provider says that the prompt is too long: aim at half of it. False if nothing could be left out."""
        before = self.fit(work)
        self._limit = max(1, before // 2)
        return self.fit(work) < before

    @property
    def wants_room(self) -> bool:
        """Whether the session's own strategy should be asked to make room: once a turn."""
        return self.settings.condenses and not self._history.whole and not self._policy_tried

    def apply_policy(self, run: str, epoch: int) -> None:
        """Let the session's own strategy make room. What it cannot do, `fit` does for this prompt."""
        self._policy_tried = True
        found = self.store.value(self.log, "retention")
        strategy = None if found is None else automatic(Retention.of(found), self._limit - self._fixed)
        if strategy is None or self._idle.get("until", 0) > self._head.head:
            return
        room = max(200, (self._limit - self._fixed))  # a quarter of the prompt, at about four bytes a token
        head = self.store.head(self.log)
        plan = plan_cut(self.store, self.log, head, strategy, model=self.settings.model, room=room)
        if not plan.drop or not frees(self.store, self.log, plan):
            self._idle["until"] = self._head.head + IDLE  # it frees nothing: do not pay for trying at every turn
            return
        with suppress(ViewChanged, ImmutableSession):
            self.store.append(self.log, plan.drafts(run=run), epoch=epoch)
        self._read_history(self.store.head(self.log))

    def called(self, work: Work, step: int, options: Mapping[str, Any]) -> Draft:
        """What the model is about to be sent: the range of the log, and a name for everything that is not in it."""
        tokens = self.fit(work)
        about = {
            "system": self.system,
            "kinds": [kind for kind, _ in self._pieces],
            "tools": self.tools,
            "options": dict(options),
        }
        context = codec.encode(about, room=codec.WRAPPING)
        digest = sha256(context).hexdigest()
        data = {
            "step": step,
            "provider": self.settings.model.provider,
            "model": self.settings.model.name,
            "from": self._history.first_seq,
            "upto": self._head.head,
            "context": digest,
            "tokens": tokens,
        }
        if self._history.pinned:
            data["pinned"] = self._history.pinned
        if self._shortened:
            data["shortened"] = self._shortened
        blobs = {} if digest in self._contexts else {digest: context}
        return Draft(type="model.called", run=work.run, author=self.settings.name, data=data, blobs=blobs)


def spec_data(spec: ToolSpec) -> list[Any]:
    return [spec.name, spec.description, dict(spec.parameters)]


def correction(measured: Sequence[int]) -> float:
    """By how much our estimate of tokens was off at the last call, where the provider reported its own count."""
    if not measured or not measured[0] or not measured[1]:
        return 1.0
    return min(4.0, max(0.5, measured[1] / measured[0]))


def automatic(retention: Retention, room: int) -> Strategy | None:
    """The strategy that makes room in a prompt; None where leaving old messages out of the prompt is the strategy."""
    name, window = retention.strategy, retention.window
    if name == "summarize_old":
        return Strategy(name=name, tokens=max(1, room // 2), messages=window, summarize=True)
    if retention.immutable or name in (None, "token_budget"):
        return None
    return strategy_of(name, window_size=window) if name == "sliding_window" else strategy_of(name)
