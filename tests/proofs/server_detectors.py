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
from tests.proofs.models import make_directory

PATIENCE = 5.0
LONG_TEXT = "a reply of several pieces, because a stream is cut between them: " * 3


class NullListener:
    """A listener that drops everything."""

    def publish_delta(self, *_: Any) -> None: ...
    def notify_append(self, log: Log) -> None: ...


class AgentHost:
    """A store with agents, and the threads that run what is queued there."""

    def __init__(self, store: Store, listener: Any = None, **agents: Agent) -> None:
        self.store, self.agents, self.patience = store, agents, PATIENCE
        self.runs = RunPool(store, self._make_responder, listener or NullListener(), threads=3, look_every=0.05)

    def _make_responder(self, store: Store, log: Log, agent: str | None) -> Responder:
        found = self.agents[agent or "a"]
        return Responder(found.plan(), Session.on_log(store, log, found))

    def ask(self, session: Session, text: str, agent: str = "a", **more: Any) -> str:
        admitted = admit_message(self.store, session.log, RunRequest(message=Message.user(text), agent=agent, **more))
        self.runs.schedule_session(TenantLog("", session.log))
        return admitted.run_id

    def wait_for_status(self, session: Session, run: str) -> str:
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


def make_echo_agent(text: str = "heard {}") -> Agent:
    return Agent(provider="scripted", script=lambda request: text.format(request.messages[-1].text))


@contextmanager
def _open_stores() -> Iterator[list[Store]]:
    with make_directory() as home, SQLiteStore(home / "log.db") as sqlite:
        yield [MemoryStore(), sqlite]


def _list_texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


def _compare(what: str, found: object, wanted: object) -> list[str]:
    return [] if found == wanted else [f"{what}: {found!r}, not {wanted!r}"]


# -- queues ------------------------------------------------------------------------------------------------------------


def run_queues(seed: int) -> list[str]:
    """What is queued is not in the conversation, is answered in order, once, and leaves the queue with its turn."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            host = AgentHost(store, a=make_echo_agent())
            session = Session("s", store=store)
            session.add_message(Message.user("before"))
            runs = [host.ask(session, text, once=text) for text in ("one", "two", "three")]
            found += _compare("a key", host.ask(session, "one", once="one"), runs[0])
            found += _compare("queued messages", _list_texts(session), ["before"])
            found += _expect_rejection(host, session)
            copy = Session.import_(session.export(), session_id="copy", store=store)
            fork = session.fork("fork")
            found += _compare("what is to be run", [due.log.id for due in store.logs_with_queued_runs()], ["s"])
            found += _compare("the copies", [_list_texts(copy), _list_texts(fork)], [["before"], ["before"]])
            dropped = host.ask(session, "dropped")
            first = host.ask(session, "first", on_busy="interrupt")
            found += _compare("dropping", host.runs.cancel(store, session.log, dropped), True)
            host.runs.open()
            found += _compare(
                "the runs", [host.wait_for_status(session, run) for run in (first, *runs)], ["finished"] * 4
            )
            found += _compare("a dropped run", host.wait_for_status(session, dropped), "cancelled")
            host.runs.stop(1)
            wanted = [text for asked in ("first", "one", "two", "three") for text in (asked, f"heard {asked}")]
            found += _compare("the conversation", _list_texts(session), ["before", *wanted])
            found += _compare("what is left", (store.logs_with_queued_runs(), store.view(session.log).queue), ([], []))
            found += _compare("the view", store.rebuild_view(session.log) == store.view(session.log), True)
    return found


def _expect_rejection(host: AgentHost, session: Session) -> list[str]:
    try:
        host.ask(session, "not now", on_busy="reject")
    except SessionBusy:
        return []
    return ["a message that was not to wait was queued"]


# -- turns that are ended or taken up by others ------------------------------------------------------------------------


def cancel_turns(seed: int) -> list[str]:
    """A turn that hangs is cancelled from outside: what it writes later is refused, and its queue goes on."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            for where in ("model", "tool"):
                found += [f"{where}: {each}" for each in _cancel_hanging_turn(store, where)]
    return found


def _cancel_hanging_turn(store: Store, where: str) -> list[str]:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any = None) -> str:
        """Hang."""
        entered.set()
        go.wait(PATIENCE)
        return "too late"

    tools = [tool(name="hang", description="Hang.")(lambda: hang())] if where == "tool" else []
    script: Any = hang if where == "model" else [call("hang", {}), "never"]
    host = AgentHost(store, a=make_echo_agent(), hanging=Agent(provider="scripted", script=script, tools=tools))
    session = Session(f"s {where}", store=store)
    host.runs.open()
    first = host.ask(session, "one", "hanging")
    if not entered.wait(PATIENCE):
        return ["it did not begin"]
    second = host.ask(session, "two")
    host.runs.cancel(store, session.log, first)
    over = session.head
    go.set()
    found = _compare(
        "the runs", [host.wait_for_status(session, run) for run in (first, second)], ["cancelled", "finished"]
    )
    time.sleep(0.1)
    late = [event.type for event in session.events(limit=None) if event.run == first and event.seq > over]
    found += _compare("what was written after the end", late, [])
    found += _compare("the conversation", _list_texts(session), ["two", "heard two"])
    found += _compare("the lease", store.lease(session.log), None)
    host.runs.stop(1)
    return found


def take_over_turns(seed: int) -> list[str]:
    """A turn whose process died is gone on with where it was; one that is given back is taken up at once."""
    found: list[str] = []
    with _open_stores() as stores:
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
            host = AgentHost(store, a=Agent(provider="scripted", script=reply, tools=[send]))
            host.runs.open()
            found += _compare("the run", host.wait_for_status(session, admitted.run_id), "finished")
            types = [event.type for event in session.events(limit=None)]
            found += _compare(
                "its beginnings", [types.count(each) for each in ("turn.started", "turn.resumed")], [1, 1]
            )
            found += _compare("what ran", ran, ["x"])
            found += _compare("the conversation", _list_texts(session), ["q", "", "sent", "done"])
            host.runs.stop(1)
            found += _give_back_turn(store)
    return found


def _give_back_turn(store: Store) -> list[str]:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any) -> str:
        entered.set()
        go.wait(PATIENCE)
        return "too late"

    one = AgentHost(store, a=Agent(provider="scripted", script=hang))
    one.runs.open()
    session = Session("given back", store=store)
    run = one.ask(session, "q")
    entered.wait(PATIENCE)
    one.runs.stop(0.02)
    other = AgentHost(store, a=make_echo_agent("quick"))
    other.runs.open()
    found = _compare("a run that was given back", other.wait_for_status(session, run), "finished")
    go.set()
    other.runs.stop(1)
    time.sleep(0.05)
    return found + _compare("its conversation", _list_texts(session), ["q", "quick"])


# -- streams -----------------------------------------------------------------------------------------------------------


def follow_tails(seed: int) -> list[str]:
    """Readers follow a log while it is written, from any position: they get everything after it, in order, once."""
    with _open_stores() as stores:
        return [found for store in stores for found in asyncio.run(_follow_log(store))]


async def _follow_log(store: Store) -> list[str]:
    feed = Feed(store, poll=0.02)
    feed.open()
    host = AgentHost(store, feed, a=make_echo_agent(LONG_TEXT + "{}"))
    host.runs.open()
    session = Session("s", store=store)
    tail = await feed.open_tail(store, session.log)
    live = asyncio.create_task(_read_tail(feed, tail, 0, 0, lambda: session.head))
    for number in range(5):
        run = await asyncio.to_thread(host.ask, session, f"q{number}")
        await asyncio.to_thread(host.wait_for_status, session, run)
        session.add_message(Message.user("aside"))
    host.runs.stop(1)
    items = await live
    found = _check_items(session, items)
    for place in range(0, len(items), 13):
        seq, n = items[place].seq, items[place].n
        rest = await _read_tail(feed, tail, seq, n, lambda: session.head)
        found += _compare(f"after {seq}.{n}", _list_positions(rest)[:5], _list_positions(items[place + 1 :])[:5])
        found += _compare(f"Last-Event-ID {seq}.{n}", position_of(f"{seq}.{n}", 1), (seq, n))
    found += await _read_ahead(feed, store)
    await feed.close()
    return found


def _list_positions(items: list[TailItem]) -> list[tuple[int, int]]:
    return [(item.seq, item.n) for item in items]


async def _read_tail(feed: Feed, tail: Any, seq: int, n: int, head: Callable[[], int]) -> list[TailItem]:
    """Follow until the reader has the end of the log and nothing more comes."""
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


def _check_items(session: Session, items: list[TailItem]) -> list[str]:
    """Events are dense; the deltas of a reply stand between its call and itself, from the first to the last."""
    found = _compare("the order", _list_positions(items), sorted(_list_positions(items)))
    events = [item.seq for item in items if item.event is not None]
    found += _compare("the events", events, list(range(1, session.head + 1)))
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


async def _read_ahead(feed: Feed, store: Store) -> list[str]:
    """A reader that comes from another server knows more than a tail that was opened here before."""
    session = Session("ahead", store=store)
    tail = await feed.open_tail(store, session.log)
    session.add_messages([Message.user(text) for text in "abc"])
    known = session.head
    reading = asyncio.create_task(_read_tail(feed, tail, known, 0, lambda: known + 1))
    await asyncio.sleep(0.05)
    session.add_message(Message.user("d"))
    return _compare("one who is ahead", _list_positions(await reading), [(known + 1, 0)])


def cut_streams(seed: int) -> list[str]:
    """The stream of a run, cut after each of its frames and gone on with, where its deltas are known or are not."""
    with _open_stores() as stores:
        return [found for store in stores for found in asyncio.run(_cut_stream(store))]


async def _cut_stream(store: Store) -> list[str]:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def reply(request: Any) -> Any:
        return LONG_TEXT if request.messages[-1].role == "tool" else ["I look.", call("look", {})]

    feed = Feed(store, poll=0.02)
    feed.open()
    host = AgentHost(store, feed, a=Agent(provider="scripted", script=reply, tools=[look]))
    host.runs.open()
    session = Session("s", store=store)
    here = await feed.open_tail(store, session.log)
    run = await asyncio.to_thread(host.ask, session, "q")
    await asyncio.to_thread(host.wait_for_status, session, run)
    host.runs.stop(1)
    await asyncio.sleep(0.1)
    elsewhere_feed = Feed(store)
    elsewhere_feed.open()
    elsewhere = await elsewhere_feed.open_tail(store, session.log)
    begun = session.events(limit=None, types=["message.queued"])[0].seq
    found: list[str] = []
    for first, second in ((here, here), (here, elsewhere), (elsewhere, here), (elsewhere, elsewhere)):
        whole = await _list_frames(first, run, begun, 0)
        for at in range(len(whole)):
            told = whole[:at]
            seq, n = max([(begun, 0), *(frame[1] for frame in told if frame[1])])
            told += await _list_frames(second, run, seq, n)
            found += [f"cut after {at} of {len(whole)}: {each}" for each in _join_frames(told)]
    for each in (feed, elsewhere_feed):
        await each.close()
    return found


StreamFrame = tuple[str, tuple[int, int] | None, Any]  # event, id, data


async def _list_frames(tail: Any, run: str, seq: int, n: int) -> list[StreamFrame]:
    sure = n == 0 or any((item.seq, item.n) == (seq, n) for item in tail.items)
    frames = RunFrames(tail, run, n, sure)
    found: list[StreamFrame] = []
    async for items in follow_tail(tail.feed, tail, seq, n):
        for text in frames(items):
            fields = dict(line.split(": ", 1) for line in text.decode().strip().split("\n"))
            id = position_of(fields["id"], None) if "id" in fields else None
            found.append((fields["event"], id, json.loads(fields["data"])))
        if frames.over or not items:
            return found
    return found


def _join_frames(told: list[StreamFrame]) -> list[str]:
    """What a reader makes of it: another message_start begins the step anew, and all else comes once."""
    steps: dict[int, str] = {}
    step = 0
    ids = [id for _, id, _ in told if id is not None]
    found = _compare("the ids", ids, sorted(set(ids)))
    for event, _, data in told:
        if event == "message_start":
            step = data["step"]
            steps[step] = ""
        elif event == "text_delta":
            steps[step] = steps.get(step, "") + data["text"]
    found += _compare("the text", steps, {1: "I look.", 2: LONG_TEXT})
    counts = [sum(event == name for event, _, _ in told) for name in ("message_stop", "tool_result", "done")]
    return found + _compare("steps, results and ends", counts, [2, 1, 1])


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "queues": run_queues,
    "cancellations": cancel_turns,
    "takeovers": take_over_turns,
    "tails": follow_tails,
    "cut streams": cut_streams,
}
