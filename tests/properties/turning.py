"""The moves of the game that a driver of turns makes: claims, steps with an epoch, ends, and guarded appends."""

from __future__ import annotations

from typing import Any

from holdfast import Message
from holdfast.log.events import Draft
from holdfast.log.messages import Limits
from holdfast.stores.lease import Claim, encode_holder
from tests.properties.model import Happened
from tests.properties.table import KEYS, Held, Table, World, said

ENDS = ("turn.finished", "turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted")
LONG = 1e6  # seconds of a lease: its time is not compared
LIMITS = Limits()


class Turning(Table):
    """Turns as a driver writes them, interleaved with what others do."""

    def start_turn(self) -> None:
        (place, held), rng = self.one(), self.rng
        self.runs += 1
        run, question, claims = f"r{self.runs}", Message.user(self.text()), rng.random() < 0.6
        drafts = [Draft(type="turn.started", run=run), Draft(type="message.added", data=_data(question), run=run)]
        happened = [Happened("turn.started", run), Happened("said", run, said(question))]
        self._append("start a turn", place, held, drafts, happened, claim=claims)

    def take_over(self) -> None:
        place, held = self.one()
        epoch = self.rng.choice((None, held.told.epoch, held.told.epoch - 1))
        self._append("claim", place, held, [], [], claim=True, epoch=epoch)

    def step_turn(self) -> None:
        (place, held), rng = self.one(), self.rng
        turn = held.told.now.turn
        run = turn.run if turn is not None and rng.random() < 0.9 else rng.choice(("r0", f"r{self.runs}"))
        drafts, happened = [], []
        for kind in rng.sample(("reply", "call", "return", "state", "called", "reject"), k=rng.randint(1, 3)):
            draft, what = self._turn_event(kind, run)
            drafts.append(draft)
            happened.append(what)
        epoch = rng.choice((None, held.told.epoch, held.told.epoch, held.told.epoch, held.told.epoch - 1))
        self._append(f"a step of {run}", place, held, drafts, happened, epoch=epoch)

    def _turn_event(self, kind: str, run: str) -> tuple[Draft, Happened]:
        if kind in ("reply", "reject"):
            data: dict[str, Any]
            message, usage = Message.assistant(self.text(), author="model"), {"input_tokens": self.rng.randint(0, 9)}
            data = {"message": _data(message), "usage": usage} | ({"rejected": True} if kind == "reject" else {})
            draft = Draft(type="model.replied", data=data, run=run, author="model")
            return draft, Happened("said", run, said(message, usage=usage, rejected=kind == "reject"))
        if kind == "return":
            message = Message.tool(self.text(), call_id="c1")
            data = {"call_id": "c1", "message": _data(message)}
            return Draft(type="tool.returned", data=data, run=run), Happened("said", run, said(message))
        if kind == "state":
            data = {"name": "from turn", "value": self.rng.randint(0, 9)}
            return Draft(type="state.set", data=data, run=run), Happened("set", run, data)
        data = {"call_id": "c1", "name": "t"}
        return Draft(type="tool.called" if kind == "call" else "model.called", data=data, run=run), Happened(kind, run)

    def end_turn(self) -> None:
        (place, held), rng = self.one(), self.rng
        turn, end = held.told.now.turn, rng.choice(ENDS)
        run = turn.run if turn is not None else "r0"
        drafts, happened = [Draft(type=end, run=run)], [Happened(end, run)]
        if rng.random() < 0.5:
            draft, what = self._turn_event("reply", run)
            drafts.insert(0, draft)
            happened.insert(0, what)
        self._append(f"{end} {run}", place, held, drafts, happened, epoch=held.told.epoch, release=True)

    def append_guarded(self) -> None:
        (place, held), rng = self.one(), self.rng
        told = held.told
        expected = rng.choice((None, told.head, told.head, told.head - 1, told.head + 1))
        epoch = rng.choice((None, told.epoch, told.epoch + 1))
        once = rng.choice((None, None, KEYS[0]))
        data = {"name": "guarded", "value": rng.randint(0, 1)}
        drafts, happened = [Draft(type="state.set", data=data)], [Happened("set", None, data)]
        self._append("append", place, held, drafts, happened, expected=expected, epoch=epoch, once=once)

    def _append(
        self,
        what: str,
        place: int,
        held: Held,
        drafts: list[Draft],
        happened: list[Happened],
        *,
        claim: bool = False,
        once: str | None = None,
        **guards: Any,
    ) -> None:
        def expected() -> dict[str, Any]:
            told, before = held.told, held.told.head
            key = None if once is None else (once, repr([(draft.type, draft.data) for draft in drafts]))
            repeated = key is not None and key[0] in told.keys
            last = told.tell(*happened, claim=claim, once=key, **guards)
            first = last - len(drafts) + 1
            assert repeated or first == before + 1
            return {"first": first, "last": last, "epoch": told.epoch, "repeated": repeated}

        def act(world: World) -> dict[str, Any]:
            session = world.held[place]
            taken = Claim(holder=encode_holder("game"), seconds=LONG) if claim else None
            found = world.store.append(session.log, drafts, claim=taken, once=once, **guards)
            return {name: getattr(found, name) for name in ("first", "last", "epoch", "repeated")}

        self.act(f"{what} {guards} {[draft.type for draft in drafts]}", act, expected)


def _data(message: Message) -> dict[str, Any]:
    return message.to_data(LIMITS)[0]
