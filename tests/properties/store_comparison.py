"""The same operation on several stores: the results are compared with each other and with the model.

The stores have equal `FixedIds` of their own: results, refusals and finally every row must be equal to the last byte.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import File, Image, Message, Session
from holdfast.clock import FixedClock
from holdfast.errors import AgentError, SessionBusy
from holdfast.log.events import Event
from holdfast.log.messages import Text, Thinking, ToolCall
from holdfast.log.view import View
from holdfast.stores.base import Log, Store
from tests.properties.expected_sessions import ExpectedLog, ExpectedMessage, ExpectedTenant, Refused

NAMES = ("alpha", "beta", "gamma", "Ünïcode id", "e-5")
OWNERS = (None, "u1", "ü/2")
WORDS = ("apple", "Pear", "zebra", "naïve", "Straße", "日本", "x1")  # no two share a word of the index
KEYS = ("k1", "k2", "ключ")
STATE_NAMES = ("a", "b", "c/d", "é", " ")
EVENT_FIELDS = ("seq", "at", "type", "v", "run", "branch", "author", "actor", "body", "tombstone", "hash", "data")
ANY = object()
NOT_FOUND = "session_not_found"


class Difference(Exception):
    """Two stores, or a store and the model, do not agree."""


def to_plain_value(value: Any) -> Any:
    """A result as values that can be compared between stores."""
    if isinstance(value, Message):
        return ["message", value.seq, value.to_dict()]
    if isinstance(value, Event):
        return [getattr(value, name) for name in EVENT_FIELDS]
    if isinstance(value, Session):
        return ["session", value.id, value.user_id, value.app_name]
    if isinstance(value, View):
        return value.to_bytes()
    if isinstance(value, Path | datetime):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain_value(getattr(value, one.name)) for one in fields(value)}
    if hasattr(value, "_asdict"):
        return to_plain_value(value._asdict())
    if isinstance(value, Mapping):
        return {name: to_plain_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_value(one) for one in value]
    return value


@dataclass(slots=True)
class StoreSide:
    """One store, and the sessions a user holds on it."""

    store: Store
    sessions: list[Session] = field(default_factory=list)

    @property
    def name(self) -> str:
        return type(self.store).__name__


@dataclass(slots=True)
class ModelSession:
    """A session object, as the model knows it."""

    log: ExpectedLog
    temp: dict[str, Any] = field(default_factory=dict)


def describe_message(message: Message, **more: Any) -> dict[str, Any]:
    """A message as the model keeps it."""
    content = message.to_dict()
    content.pop("created_at", None)
    return {"role": message.role, "text": message.text, "content": json.dumps(content, sort_keys=True), **more}


class StoreComparison:
    """One episode: a tenant of its own on every store, and the model of it."""

    def __init__(self, stores: Sequence[Store], seed: int, episode: int) -> None:
        self.seed, self.episode = seed, episode
        self.names = NAMES[: 2 if episode % 4 == 0 else len(NAMES)]  # few names, so that some logs grow long
        self.rng = random.Random(f"{seed}/{episode}")
        self.sides = []
        for store in stores:
            bound = store.for_tenant(f"t{seed}-{episode}")
            bound.clock = FixedClock(start=1_700_000_000_000_000 + episode * 10_000_000_000)
            self.sides.append(StoreSide(bound))
        self.tenant = ExpectedTenant()
        self.sessions: list[ModelSession] = []
        self.runs = self.last = 0
        self.done: list[str] = []

    def make_difference(self, text: str) -> Difference:
        ops = ", ".join(self.done[-6:])
        return Difference(f"seed {self.seed} episode {self.episode} operation {len(self.done)} (… {ops}): {text}")

    # -- performing and comparing ----------------------------------------------------------------------------------

    def compare(
        self, what: str, act: Callable[[StoreSide], Any], expected: Callable[[], Any] | None = None
    ) -> list[Any]:
        """Do the same on every side; the results must be equal, and equal to the model. Returns the raw results."""
        raw, outcomes = [], []
        for side in self.sides:
            result, outcome = run_operation(act, side)
            raw.append(result)
            outcomes.append(outcome)
        self.done[-1] = what
        for side, outcome in zip(self.sides[1:], outcomes[1:], strict=True):
            if outcome != outcomes[0]:
                raise self.make_difference(f"{self.sides[0].name} {outcomes[0]!r} but {side.name} {outcome!r}")
        drawn = {side.name: (side.store.clock.time, side.store.clock._count) for side in self.sides}  # type: ignore[attr-defined]
        if len(set(drawn.values())) > 1:
            raise self.make_difference(
                f"after {outcomes[0]!r} they have taken different times or salts from the clock: {drawn}"
            )
        kind, first = outcomes[0][:2]
        if kind == "broke":
            raise self.make_difference(f"a raw exception: {outcomes[0]!r}")
        if expected is not None:
            try:
                value = expected()
            except Refused as refused:
                if kind != "refused" or first != refused.code:
                    raise self.make_difference(
                        f"the model refuses ({refused.code}), the stores: {outcomes[0]!r}"
                    ) from None
            else:
                if kind != "ok" or (value is not ANY and first != to_plain_value(value)):
                    raise self.make_difference(f"the model says {to_plain_value(value)!r}, the stores {outcomes[0]!r}")
        return raw if kind == "ok" else []

    def keep_session(self, raw: list[Any], model_log: ExpectedLog | None) -> None:
        if raw and model_log is not None:
            for side, session in zip(self.sides, raw, strict=True):
                side.sessions.append(session)
            self.sessions.append(ModelSession(model_log))

    def choose_session(self) -> tuple[int, ModelSession]:
        """Choose an open session object: mostly the one before, or a recent one; sometimes of a deleted session."""
        rng = self.rng
        if self.last >= len(self.sessions) or rng.random() < 0.4:
            self.last = max(rng.choices(range(len(self.sessions)), k=2))
            if self.sessions[self.last].log.deleted:
                self.last = rng.randrange(len(self.sessions))
        return self.last, self.sessions[self.last]

    # -- things to say ---------------------------------------------------------------------------------------------

    def text(self) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(0, 4)))

    def draw_message(self) -> Message:
        rng, text = self.rng, self.text()
        more: dict[str, Any] = {
            "author": rng.choice((None, None, "ann", "bøb")),
            "metadata": rng.choice(({}, {}, {"n": [1, 2.5, None]})),
        }
        kind = rng.randrange(8)
        if kind == 0:
            blob = rng.randbytes(rng.randint(0, 40))
            return Message.user(text, File(data=blob, media_type="x/y", name="f"), Text(" " + self.text()), **more)
        if kind == 1:
            return Message.user(Image(url="https://x/y"), Image(data=b"same", media_type="image/png"), text, **more)
        if kind == 2:
            call = ToolCall(id="c1", name="t", arguments={"q": text})
            return Message.assistant(Thinking(text="hm", signature="s"), text, call, **more)
        if kind == 3:
            return Message.tool(text, call_id="c1", is_error=rng.random() < 0.5, **more)
        if kind == 4:
            when = datetime(2024, 1, rng.randint(1, 28), tzinfo=UTC)
            return Message("user", [text], created_at=when, **more)
        return Message(rng.choice(("user", "assistant", "system")), [text], **more)

    def draw_value(self) -> Any:
        return self.rng.choice((0, 1, -2.5, "text", None, True, [], [1, [2]], {"k": {"é": "\0"}}, 2**62))

    def draw_options(self) -> dict[str, Any]:
        rng = self.rng
        found: dict[str, Any] = {}
        for name, choices in (
            ("user_id", OWNERS),
            ("app_name", OWNERS),
            ("title", ("T", "")),
            ("system", ("be kind",)),
            ("metadata", ({}, {"a": {"b": [1]}})),
        ):
            if rng.random() < 0.3:
                found[name] = rng.choice(choices)
        if rng.random() < 0.3:
            found["messages"] = [self.draw_message() for _ in range(rng.randint(0, 2))]
        if rng.random() < 0.3:
            found["state"] = {rng.choice(STATE_NAMES): self.draw_value() for _ in range(rng.randint(0, 2))}
        return found

    def _find_scope(self, model_session: ModelSession, scope: str) -> dict[str, Any]:
        """The values of a scope that is not the session's own."""
        if scope == "temp":
            return model_session.temp
        owner = model_session.log.user_id if scope == "user" else model_session.log.app_name
        if owner is None:
            raise Refused("missing_user" if scope == "user" else "missing_app")
        return self.tenant.scopes.setdefault((scope, owner), {})

    # -- in the end ------------------------------------------------------------------------------------------------

    def compare_logs(self) -> None:
        """Every log, byte for byte, with everything that is kept beside it."""
        self._record_and_compare(
            "list_sessions", lambda side: side.store.list_sessions(), lambda: self.tenant.live_names
        )
        for kind, owner in ((kind, owner) for kind in ("user", "app") for owner in ("u1", "%C3%BC%2F2")):
            self._record_and_compare(f"the log of {kind} {owner!r}", partial(read_everything, kind, owner))
        for name in self.tenant.live_names:
            self._record_and_compare(f"the log of {name!r}", partial(read_everything, "session", name))
            self._record_and_compare(
                f"the end of {name!r}", partial(_read_end, name), partial(_expect_end, self.tenant.names[name])
            )

    def _record_and_compare(
        self, what: str, act: Callable[[StoreSide], Any], expected: Callable[[], Any] | None = None
    ) -> None:
        self.done.append(what)
        self.compare(what, act, expected)


def run_operation(act: Callable[[StoreSide], Any], side: StoreSide) -> tuple[Any, tuple[Any, ...]]:
    """The result, and an outcome that can be compared: ok, refused by name, or broken."""
    try:
        result = act(side)
        return result, ("ok", to_plain_value(result))
    except SessionBusy as error:  # its text has the time in it
        return None, ("refused", error.code)
    except AgentError as error:
        return None, ("refused", error.code, type(error).__name__, str(error))
    except Exception as error:
        return None, ("broke", "".join(traceback.format_exception(error)[-3:]))


def read_everything(kind: str, id: str, side: StoreSide) -> Any:
    """All that a store keeps about a log, without its internal numbers."""
    store = side.store
    log = store.find(kind, id)
    if log is None:
        return None
    head = store.head(log)
    found = {
        "log": [log.uid, log.origin, log.kind, log.id, log.created_at, log.base, log.user_id, log.app_name],
        "ancestry": [last for _, last in log.ancestry],
        "head": to_plain_value(head),
        "rows": [row.columns() for row in store.read(log)],
        "marked": [row.seq for row in store.read(log, marked=True)],
        "names": {prefix: store.refs(log, prefix) for prefix in ("state/", "fact/")},
        "snapshots": [store._snapshot(log.number, at) for at in range(1, head.head + 1)],
        "verify": to_plain_value(store.verify(log)),
        "export": _export(store, log),
    }
    if kind == "session":
        info = to_plain_value(store.info(log))
        del info["log"]
        found |= {"info": info, "document": store.load(id)}
    return found


def _export(store: Store, log: Log) -> str:
    return Session.on_log(store, log).export()


def _read_end(name: str, side: StoreSide) -> Any:
    session = Session.open(name, store=side.store)
    return [list_messages(session.messages), dict(session.state), session.status, len(session), session.head]


def _expect_end(model_log: ExpectedLog) -> Any:
    now = model_log.latest
    return [list_expected_messages(now.visible), dict(now.state), now.status, len(now.visible), model_log.head]


def list_messages(messages: Sequence[Message]) -> list[list[Any]]:
    return [[message.seq, message.role, message.text] for message in messages]


def list_expected_messages(messages: Sequence[ExpectedMessage]) -> list[list[Any]]:
    return [[one.seq, one.role, one.text] for one in messages]
