"""Detectors of seeded bugs in queues, takeovers and streams: small proofs without HTTP, in one process.

They return what they found; nothing means all is well.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import Agent, Message, Session, tool
from holdfast.errors import SessionBusy
from holdfast.log.events import Draft
from holdfast.server.event_stream import RunFrames, follow_tail, position_of
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Log, Store, TenantLog
from holdfast.stores.lease import Claim, encode_holder
from holdfast.testing import call
from holdfast.turn.run_outcome import outcome_of
from holdfast.worker.admission import RunRequest, admit_message
from holdfast.worker.feed import Feed, TailItem
from holdfast.worker.run_pool import Responder, RunPool
from tests.proofs.models import directory

PATIENCE = 5.0
LONG_TEXT = "a reply of several pieces, because a stream is cut between them: " * 3


class Silence:
    """A listener that nobody listens to."""

    def publish_delta(self, *_: Any) -> None: ...
    def notify_append(self, log: Log) -> None: ...


class House:
    """A store with agents, and the threads that run what is queued there."""

    def __init__(self, store: Store, listener: Any = None, **agents: Agent) -> None:
        self.store, self.agents, self.patience = store, agents, PATIENCE
        self.runs = RunPool(store, self._cast, listener or Silence(), threads=3, look_every=0.05)

    def _cast(self, store: Store, log: Log, agent: str | None) -> Responder:
        found = self.agents[agent or "a"]
        return Responder(found.plan(), Session.on_log(store, log, found))

    def ask(self, session: Session, text: str, agent: str = "a", **more: Any) -> str:
        admitted = admit_message(self.store, session.log, RunRequest(message=Message.user(text), agent=agent, **more))
        self.runs.schedule_session(TenantLog("", session.log))
        return admitted.run_id

    def status(self, session: Session, run: str) -> str:
        """How the run ends."""
        deadline = time.monotonic() + self.patience
        while True:
            found = outcome_of(self.store, session.log, run)
            if found is not None and found.over:
                return found.status
            if time.monotonic() > deadline:
                self.patience = 0.0  # one that hangs is enough
                return f"still {None if found is None else found.status}"
            time.sleep(0.005)


def saying(text: str = "heard {}") -> Agent:
    return Agent(provider="scripted", script=lambda request: text.format(request.messages[-1].text))


@contextmanager
def _stores() -> Iterator[list[Store]]:
    with directory() as home, SQLiteStore(home / "log.db") as sqlite:
        yield [MemoryStore(), sqlite]


def _texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


def _wrong(what: str, found: object, wanted: object) -> list[str]:
    return [] if found == wanted else [f"{what}: {found!r}, not {wanted!r}"]


# -- queues ------------------------------------------------------------------------------------------------------------


def queues(seed: int) -> list[str]:
    """What is queued is not in the conversation, is answered in order, once, and leaves the queue with its turn."""
    found: list[str] = []
    with _stores() as stores:
        for store in stores:
            house = House(store, a=saying())
            session = Session("s", store=store)
            session.add_message(Message.user("before"))
            runs = [house.ask(session, text, once=text) for text in ("one", "two", "three")]
            found += _wrong("a key", house.ask(session, "one", once="one"), runs[0])
            found += _wrong("queued messages", _texts(session), ["before"])
            found += _rejected(house, session)
            copy = Session.import_(session.export(), session_id="copy", store=store)
            fork = session.fork("fork")
            found += _wrong("what is to be run", [due.log.id for due in store.logs_with_queued_runs()], ["s"])
            found += _wrong("the copies", [_texts(copy), _texts(fork)], [["before"], ["before"]])
            dropped = house.ask(session, "dropped")
            first = house.ask(session, "first", on_busy="interrupt")
            found += _wrong("dropping", house.runs.cancel(store, session.log, dropped), True)
            house.runs.open()
            found += _wrong("the runs", [house.status(session, run) for run in (first, *runs)], ["finished"] * 4)
            found += _wrong("a dropped run", house.status(session, dropped), "cancelled")
            house.runs.stop(1)
            wanted = [text for asked in ("first", "one", "two", "three") for text in (asked, f"heard {asked}")]
            found += _wrong("the conversation", _texts(session), ["before", *wanted])
            found += _wrong("what is left", (store.logs_with_queued_runs(), store.view(session.log).queue), ([], []))
            found += _wrong("the view", store.rebuild_view(session.log) == store.view(session.log), True)
    return found


def _rejected(house: House, session: Session) -> list[str]:
    try:
        house.ask(session, "not now", on_busy="reject")
    except SessionBusy:
        return []
    return ["a message that was not to wait was queued"]


# -- turns that are ended or taken up by others ------------------------------------------------------------------------


def cancelling(seed: int) -> list[str]:
    """A turn that hangs is cancelled from outside: whatever it says later is refused, and its queue goes on."""
    found: list[str] = []
    with _stores() as stores:
        for store in stores:
            for where in ("model", "tool"):
                found += [f"{where}: {each}" for each in _hanging(store, where)]
    return found


def _hanging(store: Store, where: str) -> list[str]:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any = None) -> str:
        """Hang."""
        entered.set()
        go.wait(PATIENCE)
        return "too late"

    tools = [tool(name="hang", description="Hang.")(lambda: hang())] if where == "tool" else []
    script: Any = hang if where == "model" else [call("hang", {}), "never"]
    house = House(store, a=saying(), hanging=Agent(provider="scripted", script=script, tools=tools))
    session = Session(f"s {where}", store=store)
    house.runs.open()
    first = house.ask(session, "one", "hanging")
    if not entered.wait(PATIENCE):
        return ["it did not begin"]
    second = house.ask(session, "two")
    house.runs.cancel(store, session.log, first)
    over = session.head
    go.set()
    found = _wrong("the runs", [house.status(session, run) for run in (first, second)], ["cancelled", "finished"])
    time.sleep(0.1)
    late = [event.type for event in session.events(limit=None) if event.run == first and event.seq > over]
    found += _wrong("what was written after the end", late, [])
    found += _wrong("the conversation", _texts(session), ["two", "heard two"])
    found += _wrong("the lease", store.lease(session.log), None)
    house.runs.stop(1)
    return found


def takeovers(seed: int) -> list[str]:
    """A turn whose process died is gone on with where it was; one that is given back is taken up at once."""
    found: list[str] = []
    with _stores() as stores:
        for store in stores:
            ran: list[str] = []

            @tool
            def send(text: str) -> str:
                """Send."""
                ran.append(text)  # noqa: B023 - called before the next round
                return "sent"

            def reply(request: Any) -> Any:
                return "done" if request.messages[-1].role == "tool" else call("send", {"text": "x"})

            session = Session("s", store=store)
            admitted = admit_message(store, session.log, RunRequest(message=Message.user("q"), agent="a"))
            dead = encode_holder("somebody").replace(b'"pid":', b'"pid":9')  # a process that is not there
            data = {"agent": "a", "options": {}, "question": admitted.seq}
            started = Draft(type="turn.started", run=admitted.run_id, data=data)
            store.append(session.log, [started], claim=Claim(holder=dead, seconds=1000))
            house = House(store, a=Agent(provider="scripted", script=reply, tools=[send]))
            house.runs.open()
            found += _wrong("the run", house.status(session, admitted.run_id), "finished")
            types = [event.type for event in session.events(limit=None)]
            found += _wrong("its beginnings", [types.count(each) for each in ("turn.started", "turn.resumed")], [1, 1])
            found += _wrong("what ran", ran, ["x"])
            found += _wrong("the conversation", _texts(session), ["q", "", "sent", "done"])
            house.runs.stop(1)
            found += _given_back(store)
    return found


def _given_back(store: Store) -> list[str]:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any) -> str:
        entered.set()
        go.wait(PATIENCE)
        return "too late"

    one = House(store, a=Agent(provider="scripted", script=hang))
    one.runs.open()
    session = Session("given back", store=store)
    run = one.ask(session, "q")
    entered.wait(PATIENCE)
    one.runs.stop(0.02)
    other = House(store, a=saying("quick"))
    other.runs.open()
    found = _wrong("a run that was given back", other.status(session, run), "finished")
    go.set()
    other.runs.stop(1)
    time.sleep(0.05)
    return found + _wrong("its conversation", _texts(session), ["q", "quick"])


# -- streams -----------------------------------------------------------------------------------------------------------


def telling(seed: int) -> list[str]:
    """Readers of a log that is written meanwhile, from any place on: everything after it, in order, once."""
    with _stores() as stores:
        return [found for store in stores for found in asyncio.run(_told(store))]


async def _told(store: Store) -> list[str]:
    feed = Feed(store, poll=0.02)
    feed.open()
    house = House(store, feed, a=saying(LONG_TEXT + "{}"))
    house.runs.open()
    session = Session("s", store=store)
    tail = await feed.open_tail(store, session.log)
    live = asyncio.create_task(_read(feed, tail, 0, 0, lambda: session.head))
    for number in range(5):
        run = await asyncio.to_thread(house.ask, session, f"q{number}")
        await asyncio.to_thread(house.status, session, run)
        session.add_message(Message.user("aside"))
    house.runs.stop(1)
    items = await live
    found = _sound(session, items)
    for place in range(0, len(items), 13):
        seq, n = items[place].seq, items[place].n
        rest = await _read(feed, tail, seq, n, lambda: session.head)
        found += _wrong(f"after {seq}.{n}", _places(rest)[:5], _places(items[place + 1 :])[:5])
        found += _wrong(f"Last-Event-ID {seq}.{n}", position_of(f"{seq}.{n}", 1), (seq, n))
    found += await _ahead(feed, store)
    await feed.close()
    return found


def _places(items: list[TailItem]) -> list[tuple[int, int]]:
    return [(item.seq, item.n) for item in items]


async def _read(feed: Feed, tail: Any, seq: int, n: int, head: Callable[[], int]) -> list[TailItem]:
    """Follow until the log is told to its end and nothing comes any more."""
    found: list[TailItem] = []

    async def follower() -> None:
        async for items in follow_tail(feed, tail, seq, n):
            found.extend(items)

    task = asyncio.create_task(follower())
    still = 0
    while still < 3:
        before = len(found)
        await asyncio.sleep(0.02)
        at = found[-1].seq if found else seq
        still = still + 1 if len(found) == before and at >= head() else 0
    task.cancel()
    return found


def _sound(session: Session, items: list[TailItem]) -> list[str]:
    """Events are dense; the deltas of a reply stand between its call and itself, from the first to the last."""
    found = _wrong("the order", _places(items), sorted(_places(items)))
    events = [item.seq for item in items if item.event is not None]
    found += _wrong("the events", events, list(range(1, session.head + 1)))
    count, asking = 0, False
    for item in items:
        if item.event is None:
            count += 1
            if not asking or item.n != count:
                found.append(f"delta {item.seq}.{item.n} stands at the wrong place")
        elif item.event.type == "model.called":
            count, asking = 0, True
        elif item.event.type == "model.replied":
            asking = False
            if count < 3:
                found.append(f"the reply {item.seq} was told in {count} deltas")
    return found


async def _ahead(feed: Feed, store: Store) -> list[str]:
    """A reader that comes from another server knows more than a tail that was opened here before."""
    session = Session("ahead", store=store)
    tail = await feed.open_tail(store, session.log)
    session.add_messages([Message.user(text) for text in "abc"])
    known = session.head
    reading = asyncio.create_task(_read(feed, tail, known, 0, lambda: known + 1))
    await asyncio.sleep(0.05)
    session.add_message(Message.user("d"))
    return _wrong("one who is ahead", _places(await reading), [(known + 1, 0)])


def cut_streams(seed: int) -> list[str]:
    """The stream of a run, cut after each of its frames and gone on with, where its deltas are known or are not."""
    with _stores() as stores:
        return [found for store in stores for found in asyncio.run(_cut(store))]


async def _cut(store: Store) -> list[str]:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def reply(request: Any) -> Any:
        return LONG_TEXT if request.messages[-1].role == "tool" else ["I look.", call("look", {})]

    feed = Feed(store, poll=0.02)
    feed.open()
    house = House(store, feed, a=Agent(provider="scripted", script=reply, tools=[look]))
    house.runs.open()
    session = Session("s", store=store)
    here = await feed.open_tail(store, session.log)
    run = await asyncio.to_thread(house.ask, session, "q")
    await asyncio.to_thread(house.status, session, run)
    house.runs.stop(1)
    await asyncio.sleep(0.1)
    elsewhere_feed = Feed(store)
    elsewhere_feed.open()
    elsewhere = await elsewhere_feed.open_tail(store, session.log)
    begun = session.events(limit=None, types=["message.queued"])[0].seq
    found: list[str] = []
    for first, second in ((here, here), (here, elsewhere), (elsewhere, here), (elsewhere, elsewhere)):
        whole = await _frames(first, run, begun, 0)
        for at in range(len(whole)):
            told = whole[:at]
            seq, n = max([(begun, 0), *(frame[1] for frame in told if frame[1])])
            told += await _frames(second, run, seq, n)
            found += [f"cut after {at} of {len(whole)}: {each}" for each in _put_together(told)]
    for each in (feed, elsewhere_feed):
        await each.close()
    return found


Told = tuple[str, tuple[int, int] | None, Any]  # event, id, data


async def _frames(tail: Any, run: str, seq: int, n: int) -> list[Told]:
    sure = n == 0 or any((item.seq, item.n) == (seq, n) for item in tail.items)
    frames = RunFrames(tail, run, n, sure)
    found: list[Told] = []
    async for items in follow_tail(tail.feed, tail, seq, n):
        for text in frames(items):
            fields = dict(line.split(": ", 1) for line in text.decode().strip().split("\n"))
            id = position_of(fields["id"], None) if "id" in fields else None
            found.append((fields["event"], id, json.loads(fields["data"])))
        if frames.over or not items:
            return found
    return found


def _put_together(told: list[Told]) -> list[str]:
    """What a reader makes of it: another message_start begins the step anew, and all else comes once."""
    steps: dict[int, str] = {}
    step = 0
    ids = [id for _, id, _ in told if id is not None]
    found = _wrong("the ids", ids, sorted(set(ids)))
    for event, _, data in told:
        if event == "message_start":
            step = data["step"]
            steps[step] = ""
        elif event == "text_delta":
            steps[step] = steps.get(step, "") + data["text"]
    found += _wrong("the text", steps, {1: "I look.", 2: LONG_TEXT})
    counts = [sum(event == name for event, _, _ in told) for name in ("message_stop", "tool_result", "done")]
    return found + _wrong("steps, results and ends", counts, [2, 1, 1])


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "queues": queues,
    "cancelling": cancelling,
    "takeovers": takeovers,
    "telling": telling,
    "cut streams": cut_streams,
}
