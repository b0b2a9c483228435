"""B2 and B8 for turns: processes killed at every crash point of a turn, poisoned by it, or stopped inside it.

A turn has one reply with two parallel calls, another call, and an answer. Every tool leaves a file named by its call
and its process, so what ran is known without the log. What must stay true: what may not be repeated
is not, what is not known is reported as unknown, and what a model is sent would be taken by any provider.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from holdfast import Agent, Message, Session, ToolContext, tool
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import StaleEpoch, TurnParked
from holdfast.log.events import Event
from holdfast.log.messages import ToolCall, ToolResult
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from holdfast.stores.lease import DEFAULT_SECONDS
from holdfast.testing import call
from holdfast.testing.crash import Acknowledge, Child, Point, Work, crash_points, run_in_child
from tests.kit.crash_workload import wait_for_other_connections
from tests.proofs import Report, proof
from tests.proofs.crashes import Opener, make_openers, make_scratch_directory, shorten_leases

A, B, C = call("send", {"text": "a"}), call("put", {"text": "b"}), call("send", {"text": "c"})
QUESTION, ANOTHER, LAST = "do both, then one more", "never mind: what now?", "are you there?"
AT_ONCE = DEFAULT_SECONDS / 2  # seconds: waiting for the lease of a dead process takes longer than that
DEATHS_IN_RECOVERY = 3  # fewer than the attempts after which a turn is parked
LEASE = 1.0  # seconds, for processes that are stopped and not dead
IN_TRANSACTION = ("before events", "between events and head", "before commit")  # a process that stops here holds locks
DELTAS = "between deltas"  # a third of all points, and much like each other: taken every fifth time

# -- what a provider takes -------------------------------------------------------------------------------------------


def find_message_faults(messages: Sequence[Message], *, of_several_agents: bool = False) -> list[str]:
    """Why a provider would refuse these messages: calls without results at once behind them, or the reverse.

    In the messages of a session two agents may have used the same call id: each agent's model sees the calls of the
    other one as text, so its provider never gets both.
    """
    found: list[str] = []
    known: set[tuple[str, str]] = set()
    waiting: list[str] = []
    for place, message in enumerate(messages):
        calls = [part.id for part in message.parts if isinstance(part, ToolCall)]
        results = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        if message.role != "tool" and waiting:
            found.append(f"message {place}: {message.role} speaks while {waiting} have no result")
            waiting = []
        if (calls and message.role != "assistant") or (results and message.role != "tool"):
            found.append(f"message {place}: {message.role} has calls or results")
        if message.role == "tool" and not results:
            found.append(f"message {place}: a tool message without a result")
        for call_id in results:
            if call_id in waiting:
                waiting.remove(call_id)
            else:
                found.append(f"message {place}: a result of {call_id!r}, which nobody called")
        for call_id in calls:
            used = (message.author if of_several_agents else "", call_id)
            if not call_id or used in known:
                found.append(f"message {place}: the call id {call_id!r} is empty or used before")
            known.add(used)
        waiting += calls
    if waiting:
        found.append(f"{waiting} have no result")
    return found


def find_request_faults(request: ModelRequest) -> list[str]:
    """Why a provider would refuse a request."""
    last = request.messages[-1].role if request.messages else "nobody"
    wrong = [] if last in ("user", "tool") else [f"{last} has the last word in a request"]
    return find_message_faults(request.messages) + wrong


# -- a turn whose effects can be seen --------------------------------------------------------------------------------


@dataclass
class ToolEffects:
    """What tools did, as files: `tool|call|process|number`, made before the result can be known."""

    directory: Path
    _count: Any = field(default_factory=count)

    def record(self, name: str, key: str) -> bool:
        """Record the start of a tool and its effect; False if the call had the effect before."""
        (self.directory / f"{name}|{key}|{os.getpid()}|{next(self._count)}").touch()
        try:
            os.close(os.open(self.directory / f"done {name} {key}", os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def list_starts(self) -> list[tuple[str, str, int]]:
        """Every start of a tool: its name, its call's key, its process."""
        names = [path.name.split("|") for path in self.directory.iterdir() if "|" in path.name]
        return sorted((name, key, int(pid)) for name, key, pid, _ in names)


def make_working_agent(
    effects: ToolEffects, report: Callable[[Any], None] = lambda _: None, *, parallel: bool = True
) -> Agent:
    """Answers every question with the same turn: it follows from the request alone how far that is."""
    script = [["Both.", A, B], C] if parallel else [A, B, C]

    @tool
    def send(text: str, ctx: ToolContext) -> str:
        """Send something that cannot be called back."""
        return f"sent {text}" if effects.record("send", ctx.idempotency_key) else "sent twice!"

    @tool(idempotent=True)
    async def put(text: str, ctx: ToolContext) -> str:
        """Put something where it may be already."""
        effects.record("put", ctx.idempotency_key)
        return f"put {text}"

    def reply(request: ModelRequest) -> Any:
        for problem in find_request_faults(request):
            report(["refused", problem])
        question = max(at for at, message in enumerate(request.messages) if message.role == "user")
        turn = request.messages[question + 1 :]
        replies = sum(message.role == "assistant" for message in turn)
        if replies < len(script):
            return script[replies]
        return "; ".join(message.text for message in turn if message.role == "tool")

    return Agent(provider="scripted", script=reply, tools=[send, put], name="worker")


def make_asking_work(opener: Opener, name: str, effects: ToolEffects, *, awaited: bool, parallel: bool = True) -> Work:
    """The process that is to die: it asks the question."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=make_working_agent(effects, acknowledge, parallel=parallel))
            acknowledge(["pid", os.getpid()])
            response = asyncio.run(session.run_async(QUESTION)) if awaited else session.run(QUESTION)
            acknowledge(["answer", response.text])

    return work


def make_finishing_work(
    opener: Opener, name: str, effects: ToolEffects, *, how: str, awaited: bool, parallel: bool = True
) -> Work:
    """Another process: it takes up what it finds, or settles it with a question of its own; then asks once more."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=make_working_agent(effects, acknowledge, parallel=parallel))
            acknowledge(["pid", os.getpid()])
            left = session.unfinished
            acknowledge(["left", left and [left.question, left.attempts, left.parked, left.unknown_calls]])
            began = time.monotonic()
            if how == "resume":
                response = asyncio.run(session.resume_async()) if awaited else session.resume()
            else:
                response = asyncio.run(session.run_async(ANOTHER)) if awaited else session.run(ANOTHER)
            acknowledge(["answer", response and response.text, time.monotonic() - began])
            acknowledge(["further", session.run(LAST).text])

    return work


def make_sessions(opener: Opener, names: Iterable[str]) -> None:
    """Create sessions before a process is killed in them. A child does it: its parent must stay without threads."""

    def work(_: Acknowledge) -> None:
        with opener() as store:
            for name in names:
                Session(id=name, store=store)

    end = run_in_child(work)
    if end.error:
        raise RuntimeError(end.error)


# -- killed at every point -------------------------------------------------------------------------------------------


@proof("B2", ci=2, long=100)
def kill_turns(size: int, seed: int) -> Report:
    """Kill -9 at every crash point that a turn passes, `size` times each, and every second time in recoveries too."""
    figures, failures = [], []
    slowest = 0.0
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            rng = random.Random(f"{seed} {kind}")
            opener = new()
            points = list_turn_points(opener)
            deaths = recovery_deaths = again = unknown = 0
            todo = [(point, nth) for nth in range(size) for point in points if nth % 5 == 0 or point.name != DELTAS]
            make_sessions(opener, [f"k{number}" for number in range(len(todo))])
            for number, (point, nth) in enumerate(todo):
                how = ("resume", "settle")[(nth + number) % 2]
                later_deaths = rng.randrange(1, DEATHS_IN_RECOVERY + 1) if nth >= 2 and rng.random() < 0.5 else 0
                found = kill_and_recover(
                    opener, f"k{number}", point, how, [rng.choice(points) for _ in range(later_deaths)], rng
                )
                failures += [
                    f"{kind}, {point}, {how}, relapses {later_deaths}: {failure}" for failure in found.failures
                ]
                deaths += 1
                recovery_deaths += found.later_deaths
                again += found.repeated
                unknown += found.unknown
                slowest = max(slowest, found.seconds)
            figures.append(
                f"{kind} {deaths} deaths at {len({point.name for point in points})} named points, "
                f"{recovery_deaths} in recovery, {again} idempotent calls repeated, {unknown} told as unknown"
            )
    figures.append(f"taken over within {slowest:.1f} s")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def list_turn_points(opener: Opener, *, parallel: bool = True) -> list[Point]:
    """The crash points of a turn in a session that is there."""
    with make_scratch_directory(memory=True) as directory:
        make_sessions(opener, ["listed"])
        everything = crash_points(
            make_asking_work(opener, "listed", ToolEffects(directory), awaited=False, parallel=parallel)
        )
    return [point for point in everything if point.name != "migration applied"]


@dataclass
class TurnOutcome:
    """The result of a turn whose processes were killed."""

    failures: list[str] = field(default_factory=list)
    later_deaths: int = 0
    repeated: int = 0
    unknown: int = 0
    seconds: float = 0.0


def kill_and_recover(
    opener: Opener, name: str, point: Point, how: str, later_deaths: Sequence[Point], rng: random.Random
) -> TurnOutcome:
    """Kill a process that asks, kill some that resume, let the last one finish; then check the session."""
    found = TurnOutcome()
    with make_scratch_directory(memory=True) as directory:
        effects = ToolEffects(directory)
        first = run_in_child(make_asking_work(opener, name, effects, awaited=rng.random() < 0.5), at=point)
        told = list(first.acknowledged)
        if first.error:
            found.failures.append(first.error)
        heirs: list[list[Any]] = []
        for relapse in (*later_deaths, None):
            awaited = rng.random() < 0.5
            end = run_in_child(make_finishing_work(opener, name, effects, how=how, awaited=awaited), at=relapse)
            if end.error or (relapse is None and not end.acknowledged[-1:]):
                found.failures.append(end.error or "nobody finished the turn")
            found.later_deaths += end.killed
            heirs.append(end.acknowledged)
            told += end.acknowledged
            if not end.killed:  # it died, or there was nothing left to die in
                break
        found.failures += [f"a request would be refused: {item[1]}" for item in told if item[0] == "refused"]
        last = {item[0]: item[1:] for item in heirs[-1]}
        if "answer" in last:
            found.seconds = last["answer"][1]
            if found.seconds > AT_ONCE:
                found.failures.append(f"the lease of a dead process was waited for: {found.seconds:.1f} s")
        with opener() as store:
            wait_for_other_connections(store)
            compare_with_log(Session.open(name, store=store), effects, told, last, how, found)
    return found


def compare_with_log(
    session: Session, effects: ToolEffects, told: Sequence[Any], last: dict[str, Any], how: str, found: TurnOutcome
) -> None:
    """Compare the log with the files and with the acknowledgements of the processes."""
    store, log = session.store, session.log
    events = session.events(limit=None)
    found.failures += find_session_faults(store, session)
    pids = [item[1] for item in told if item[0] == "pid"]
    starts = effects.list_starts()
    turns = {event.run: [each for each in events if each.run == event.run] for event in events if event.run}
    for run, own in turns.items():
        found.failures += check_effects_of_turn(run, own, starts, log.uid, heir=pids[-1], found=found)
    orphans = [key for _, key, _ in starts if key.split(":")[1] not in turns]
    found.failures += [f"{key} ran and its turn is not in the log" for key in orphans]
    ends = Counter(own[-1].type for own in turns.values())
    if set(ends) - {"turn.finished", "turn.interrupted"} or ends["turn.interrupted"] > (how == "settle") * len(pids):
        found.failures.append(f"turns ended as {dict(ends)}")
    if how == "resume" and last.get("left") not in (None, [None]) and last.get("answer", [None])[0] is None:
        found.failures.append("resume() found nothing to do where `unfinished` told of a turn")
    answers = [message for message in session.messages if message.role == "assistant" and not message.tool_calls]
    wanted = ends["turn.finished"] + ends["turn.interrupted"]
    if len(answers) != wanted:
        found.failures.append(f"{wanted} turns have {len(answers)} answers")
    questions = Counter(message.text for message in session.messages if message.role == "user")
    asked = range(1, 2 + found.later_deaths)  # a killed process may have asked
    if questions[QUESTION] > 1 or questions[LAST] not in asked or questions[ANOTHER] > 1 + found.later_deaths:
        found.failures.append(f"questions: {dict(questions)}")
    if answers and answers[-1].text != "sent a; put b; sent c":
        ordered = sorted(answers[-1].text.split("; "))
        if ordered != ["put b", "sent a", "sent c"]:
            found.failures.append(f"the last turn ended with {answers[-1].text!r}")


def find_session_faults(store: Store, session: Session) -> list[str]:
    """Find what is wrong with a session that no process works on."""
    log = session.log
    failures = []
    verdict = store.verify(log)
    if not verdict:
        failures.append(f"the log does not verify: {verdict.reason}")
    seqs = [row.seq for row in store.walk(log)]
    if seqs != list(range(1, store.head(log).head + 1)):
        failures.append(f"the log is not dense: {seqs}")
    if store.rebuild_view(log) != store.view(log):
        failures.append("the view is not what the events give")
    failures += [f"messages: {fault}" for fault in find_message_faults(session.messages, of_several_agents=True)]
    if store.view(log).turn is not None:
        failures.append("the session is stuck in a turn")
    if store.lease(log) is not None:
        failures.append("the lease was not given back")
    return failures


def check_effects_of_turn(
    run: str, own: Sequence[Event], starts: Iterable[tuple[str, str, int]], uid: str, *, heir: int, found: TurnOutcome
) -> list[str]:
    """What the tools of one turn did, against what the log says of them."""
    failures: list[str] = []
    called = [event for event in own if event.type == "tool.called"]
    returned: dict[str, list[Event]] = {}
    for event in own:
        if event.type == "tool.returned":
            returned.setdefault(event.data["call_id"], []).append(event)
    takeovers = [event.seq for event in own if event.type in ("turn.resumed", "turn.interrupted")]
    by_key: dict[str, list[tuple[str, int]]] = {}
    for name, key, pid in starts:
        if key.split(":")[1] == run:
            by_key.setdefault(key, []).append((name, pid))
    intents = {f"{uid}:{run}:{event.data['call_id']}": event for event in called}
    failures += [f"{key} ran without an intent" for key in by_key if key not in intents]
    for key, intent in intents.items():
        ran = by_key.get(key, [])
        results = returned.get(intent.data["call_id"], [])
        name = intent.data["name"]
        if len(results) != 1:
            failures.append(f"{name} has {len(results)} results")
            continue
        result = results[0]
        unknown = bool(result.data.get("unknown"))
        found.unknown += unknown
        found.repeated += max(0, len(ran) - 1)
        if name == "send" and len(ran) > 1:
            failures.append(f"{name} ran {len(ran)} times")
        if not unknown and not ran:
            failures.append(f"{name} has a result and did not run")
        if len({pid for _, pid in ran}) < len(ran):
            failures.append(f"{name} ran twice in one process")
        recorded_before = any(result.seq < takeover for takeover in takeovers)
        if recorded_before and any(pid == heir for _, pid in ran):
            failures.append(f"{name} had its result and was run again")
        if unknown and "unknown" not in result.data["message"]["parts"][0]["content"]:
            failures.append(f"{name}: nobody is told that its outcome is unknown")
        if "twice" in result.data["message"]["parts"][0]["content"]:
            failures.append(f"{name} met its own effect")
    return failures


# -- turns that end their process ------------------------------------------------------------------------------------


@proof("B2", ci=1, long=20)
def poison_turns(size: int, seed: int) -> Report:
    """A turn that ends its process each time is parked, delays no other session, and is settled by a new message."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            opener = new()
            for number in range(size):
                for where in ("tool", "model"):
                    found, deaths = run_poisoned_turn(opener, f"p{number}-{where}", where)
                    failures += [f"{kind}, in the {where}: {failure}" for failure in found]
            figures.append(f"{kind} {2 * size} turns parked after {deaths} deaths")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def run_poisoned_turn(opener: Opener, name: str, where: str) -> tuple[list[str], int]:
    """Let a turn end its process until it is parked; what is wrong, and how many died."""
    failures: list[str] = []
    make_sessions(opener, [name, f"{name}-other"])
    with make_scratch_directory(memory=True) as directory:
        effects = ToolEffects(directory)

        @tool(idempotent=True)
        def poison(ctx: ToolContext) -> str:
            effects.record("poison", ctx.idempotency_key)
            os._exit(3)

        def reply(request: ModelRequest) -> Any:
            if find_request_faults(request):
                return "refused"
            if request.messages[-1].text == LAST:
                return "here"
            if where == "tool":
                return call("poison")
            effects.record("poison", "a:b:c")
            os._exit(3)

        def work(acknowledge: Acknowledge) -> None:
            with opener() as store:
                agent = Agent(provider="scripted", script=reply, tools=[poison])
                acknowledge(Session.open(f"{name}-other", store=store).run(LAST, agent=agent).text)
                session = Session.open(name, store=store, agent=agent)
                try:
                    if session.unfinished is None:
                        session.run(QUESTION)
                    else:
                        session.resume()
                except TurnParked as error:
                    left = session.unfinished
                    acknowledge(["parked", error.attempts, left is not None and left.parked])
                    try:
                        session.resume()
                    except TurnParked:
                        acknowledge(session.run(LAST).text)

        parked = None
        for deaths in range(50):  # noqa: B007 - the count is wanted afterwards
            end = run_in_child(work)
            if end.error or end.acknowledged[:1] != ["here"]:
                failures.append(end.error or f"another session was answered {end.acknowledged}")
                break
            if end.acknowledged[1:]:
                parked = end.acknowledged[1:]
                break
        runs = len(effects.list_starts())
        if parked is None or parked[0][::2] != ["parked", True] or parked[1:] != ["here"]:
            failures.append(f"after {deaths} deaths: {parked}")
        elif not parked[0][1] <= runs <= parked[0][1] + 1:
            failures.append(f"it ran {runs} times in {parked[0][1]} attempts")
        with opener() as store:
            wait_for_other_connections(store)
            session = Session.open(name, store=store)
            failures += find_session_faults(store, session)
            if [message.text for message in session.messages][-2:] != [LAST, "here"]:
                failures.append(f"messages: {session.messages}")
    return failures, deaths


# -- turns of processes that are stopped -----------------------------------------------------------------------------


@proof("B8", ci=2, long=100)
def zombie_turns(size: int, seed: int) -> Report:
    """Stop a process at a crash point of its turn until another one has finished that turn; then let it go on.

    Its calls come one after the other: where two run at once, one of them may have passed its last check when the other
    stops their process.
    """
    figures, failures = [], []
    with make_openers(durable=False) as fresh, shorten_leases(LEASE):
        for kind, new in fresh.items():
            opener = new()
            points = [point for point in list_turn_points(opener, parallel=False) if point.name not in IN_TRANSACTION]
            first, last = {point.name: point for point in reversed(points)}, {point.name: point for point in points}
            more = random.Random(seed).sample(points, min(size, len(points)))
            chosen = sorted({*first.values(), *last.values(), *more})
            failures += [f"{kind}, {failure}" for failure in wake_stopped_processes(opener, chosen)]
            figures.append(f"{kind} {len(chosen)} zombies")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrote, ran a tool or hung", failures=failures)


@dataclass
class StoppedProcess:
    """A process that was stopped at a point of its turn."""

    name: str
    point: Point
    child: Child
    uid: str = ""
    began: bool = False  # its turn was in the log when it was stopped
    head: int = 0  # of the log, once the turn was finished by another


def wake_stopped_processes(opener: Opener, points: Sequence[Point]) -> list[str]:
    """One process for each point, stopped there; all of their turns are taken over, then all wake."""
    failures: list[str] = []
    stopped: list[StoppedProcess] = []
    with ExitStack() as stack:
        effects = ToolEffects(stack.enter_context(make_scratch_directory(memory=True)))
        make_sessions(opener, [f"z{number}" for number in range(len(points))])
        for number, point in enumerate(points):
            work = make_asking_work(opener, f"z{number}", effects, awaited=False, parallel=False)
            child = stack.enter_context(Child(stop_at_point(work, point)))
            state = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if state is not None and state.si_code == os.CLD_STOPPED:
                stopped.append(StoppedProcess(f"z{number}", point, child))
            else:
                failures.append(f"{point}: it was not stopped: {child.wait().error}")
        with opener() as store:
            for process in stopped:
                session = Session.open(process.name, store=store)
                process.uid, process.began = session.log.uid, session.head > 1
        for process in stopped:
            end = run_in_child(
                make_finishing_work(opener, process.name, effects, how="resume", awaited=False, parallel=False)
            )
            if end.error or end.killed:
                failures.append(f"{process.point}: nobody could take over: {end.error}")
            failures += [f"{process.point}: refused: {item[1]}" for item in list_refusals(end.acknowledged)]
            process.head = read_head(opener, process.name)
        known = effects.list_starts()
        for process in stopped:
            process.child.signal(signal.SIGCONT)
            failures += [f"{process.point}: {wrong}" for wrong in check_woken_process(opener, process)]
        points_by_uid = {process.uid: process.point for process in stopped if process.began}
        for name, key, _pid in (Counter(effects.list_starts()) - Counter(known)).elements():
            if key.split(":")[0] in points_by_uid:
                failures.append(f"{points_by_uid[key.split(':')[0]]}: the stopped process started {name}")
    return failures


def stop_at_point(work: Work, point: Point) -> Work:
    """The same work in a process that stops itself at a point."""

    def armed(acknowledge: Acknowledge) -> None:
        left = [point.nth]

        def stop(name: str) -> None:
            if name == point.name:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(
                        0.02
                    )  # another thread may take the signal: this one must not go on before all are stopped

        arm_crashpoints(stop)
        work(acknowledge)

    return armed


def check_woken_process(opener: Opener, stopped: StoppedProcess) -> list[str]:
    """Check what a stopped process did after it woke. One that was stopped before its turn was in the log may go on."""
    end = stopped.child.wait()
    answered = [item for item in end.acknowledged if item[0] == "answer"]
    failures = [f"the zombie's request would be refused: {item[1]}" for item in list_refusals(end.acknowledged)]
    with opener() as store:
        session = Session.open(stopped.name, store=store)
        failures += find_session_faults(store, session)
        if not stopped.began:
            return failures if answered else [*failures, f"it ended with {end.error}"]
        if answered and not is_last(session, stopped.point):
            failures.append(f"the zombie was answered {answered}")
        if not answered and StaleEpoch.__name__ not in (end.error or ""):
            failures.append(f"the zombie ended with {end.error}")
        if session.head != stopped.head:
            failures.append(f"the zombie wrote: the log went from {stopped.head} to {session.head}")
    return failures


def is_last(session: Session, point: Point) -> bool:
    """Whether a turn that was stopped there had its end stored: then no process took it over, and it has its answer."""
    return point.name.startswith("after ") and not session.events(types=["turn.resumed"], limit=1)


def read_head(opener: Opener, name: str) -> int:
    with opener() as store:
        return Session.open(name, store=store).head


def list_refusals(told: Sequence[Any]) -> list[Any]:
    return [item for item in told if item[0] == "refused"]
