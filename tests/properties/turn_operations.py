"""Random operations of a driver of turns: claims, steps with an epoch, ends, and guarded appends."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from holdfast import Message
from holdfast.log.events import Draft
from holdfast.log.messages import Limits
from holdfast.stores.lease import Claim, encode_holder
from tests.properties.expected_sessions import ExpectedEvent
from tests.properties.store_comparison import KEYS, ModelSession, StoreComparison, StoreSide, describe_message

ENDS = ("turn.finished", "turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted")
LEASE_SECONDS = 1e6  # seconds of a lease: its time is not compared
LIMITS = Limits()
MODEL = {"provider": "p", "model": "m"}
PROMPT = b'{"kinds":[],"options":{},"system":[],"tools":[]}'


class TurnOperations(StoreComparison):
    """Turns as a driver writes them, interleaved with what others do."""

    def start_turn(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        self.runs += 1
        run, question, claims = f"r{self.runs}", Message.user(self.text()), rng.random() < 0.6
        drafts = [
            Draft(type="turn.started", run=run, data={"agent": None, "options": {}}),
            Draft(type="message.added", data=_encode_message(question), run=run),
        ]
        events = [ExpectedEvent("turn.started", run), ExpectedEvent("message", run, describe_message(question))]
        self._append("start a turn", place, model_session, drafts, events, claim=claims)

    def take_over(self) -> None:
        place, model_session = self.choose_session()
        epoch = self.rng.choice((None, model_session.log.epoch, model_session.log.epoch - 1))
        self._append("claim", place, model_session, [], [], claim=True, epoch=epoch)

    def step_turn(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        turn = model_session.log.latest.turn
        run = turn.run if turn is not None and rng.random() < 0.9 else rng.choice(("r0", f"r{self.runs}"))
        drafts, events = [], []
        for kind in rng.sample(("reply", "call", "return", "state", "called", "reject"), k=rng.randint(1, 3)):
            draft, what = self._turn_event(kind, run)
            drafts.append(draft)
            events.append(what)
        epoch = rng.choice(
            (
                None,
                model_session.log.epoch,
                model_session.log.epoch,
                model_session.log.epoch,
                model_session.log.epoch - 1,
            )
        )
        self._append(f"a step of {run}", place, model_session, drafts, events, epoch=epoch)

    def _turn_event(self, kind: str, run: str) -> tuple[Draft, ExpectedEvent]:
        if kind in ("reply", "reject"):
            data: dict[str, Any]
            message, usage = Message.assistant(self.text(), author="model"), {"input_tokens": self.rng.randint(0, 9)}
            data = {"message": _encode_message(message), "usage": usage, **MODEL, "stop_reason": "end_turn"}
            data |= {"rejected": "no JSON"} if kind == "reject" else {}
            draft = Draft(type="model.replied", data=data, run=run, author="model")
            return draft, ExpectedEvent(
                "message", run, describe_message(message, usage=usage, rejected=kind == "reject")
            )
        if kind == "return":
            message = Message.tool(self.text(), call_id="c1")
            data = {"call_id": "c1", "name": "t", "message": _encode_message(message)}
            return Draft(type="tool.returned", data=data, run=run), ExpectedEvent(
                "message", run, describe_message(message)
            )
        if kind == "state":
            data = {"name": "from turn", "value": self.rng.randint(0, 9)}
            return Draft(type="state.set", data=data, run=run), ExpectedEvent("set", run, data)
        if kind == "call":
            data = {"call_id": "c1", "name": "t", "arguments": {}}
            return Draft(type="tool.called", data=data, run=run), ExpectedEvent(kind, run)
        data = {"step": 1, **MODEL, "from": 1, "upto": 0, "context": sha256(PROMPT).hexdigest()}
        draft = Draft(type="model.called", data=data, run=run, blobs={data["context"]: PROMPT})
        return draft, ExpectedEvent(kind, run)

    def end_turn(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        turn, end = model_session.log.latest.turn, rng.choice(ENDS)
        run = turn.run if turn is not None else "r0"
        drafts, events = [Draft(type=end, run=run)], [ExpectedEvent(end, run)]
        if rng.random() < 0.5:
            draft, what = self._turn_event("reply", run)
            drafts.insert(0, draft)
            events.insert(0, what)
        self._append(f"{end} {run}", place, model_session, drafts, events, epoch=model_session.log.epoch, release=True)

    def append_guarded(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        model_log = model_session.log
        expected = rng.choice((None, model_log.head, model_log.head, model_log.head - 1, model_log.head + 1))
        epoch = rng.choice((None, model_log.epoch, model_log.epoch + 1))
        once = rng.choice((None, None, KEYS[0]))
        data = {"name": "guarded", "value": rng.randint(0, 1)}
        drafts, events = [Draft(type="state.set", data=data)], [ExpectedEvent("set", None, data)]
        self._append("append", place, model_session, drafts, events, expected=expected, epoch=epoch, once=once)

    def _append(
        self,
        what: str,
        place: int,
        model_session: ModelSession,
        drafts: list[Draft],
        events: list[ExpectedEvent],
        *,
        claim: bool = False,
        once: str | None = None,
        **guards: Any,
    ) -> None:
        def expected() -> dict[str, Any]:
            model_log, before = model_session.log, model_session.log.head
            key = None if once is None else (once, repr([(draft.type, draft.data) for draft in drafts]))
            repeated = key is not None and key[0] in model_log.keys
            last = model_log.append(*events, claim=claim, once=key, **guards)
            first = last - len(drafts) + 1
            assert repeated or first == before + 1
            return {"first": first, "last": last, "epoch": model_log.epoch, "repeated": repeated}

        def act(side: StoreSide) -> dict[str, Any]:
            session = side.sessions[place]
            taken = Claim(holder=encode_holder("game"), seconds=LEASE_SECONDS) if claim else None
            found = side.store.append(session.log, drafts, claim=taken, once=once, **guards)
            return {name: getattr(found, name) for name in ("first", "last", "epoch", "repeated")}

        self.compare(f"{what} {guards} {[draft.type for draft in drafts]}", act, expected)


def _encode_message(message: Message) -> dict[str, Any]:
    return message.to_data(LIMITS)[0]
