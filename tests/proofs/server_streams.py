"""B17: streams that are cut at any byte go on, here or on another server."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast import Session
from tests.kit.postgres import PostgresServer
from tests.kit.server_process import Frame, RawConnection, ServerProcess
from tests.proofs import Report, proof
from tests.proofs.clients import STUCK, ClientLoad, compare_with_store, open_url
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.killed_server_app import answer_to
from tests.proofs.server_fleet import start_servers

SESSIONS = [f"s{number}" for number in range(3)]
LOG_READERS, RUN_READERS, WRITERS = 4, 4, 3
SSE = {"Accept": "text/event-stream"}

# -- streams that are cut ----------------------------------------------------------------------------------------------


@dataclass
class CutBudget:
    """How many connections are still to be cut, for all readers together."""

    left: int
    made: int = 0
    resumed: int = 0  # on another server than before
    _lock: Any = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self._lock:
            self.left -= 1
            self.made += self.left >= 0
            return self.left >= 0


@proof("B17", ci=500, long=50_000)
def stream_cuts(size: int, seed: int) -> Report:
    """Streams are cut at random bytes `size` times and go on, here or on another server: nothing missed or repeated."""
    with make_scratch_directory(memory=True) as directory, PostgresServer() as postgres:
        url = postgres.database(tcp=True)
        with start_servers(2, url, prove_effects=directory, prove_pause=0.008) as running:
            load = ClientLoad(running, SESSIONS, f"{seed} writers", clients=WRITERS)
            load.make_sessions()
            cuts, others = CutBudget(size // 2), CutBudget(size - size // 2)
            logs = [LogReader(running, SESSIONS[number % 3], f"{seed} {number}", cuts) for number in range(LOG_READERS)]
            runs = [RunReader(running, f"own{number}", f"{seed} {number}", others) for number in range(RUN_READERS)]
            with running[0].client() as client:
                for each in runs:
                    client.post("/sessions", json={"id": each.session}).raise_for_status()
            with load.running():
                threads = [threading.Thread(target=each.run) for each in (*logs, *runs)]
                for thread in threads:
                    thread.start()
                while others.left > size // 4:
                    time.sleep(0.02)
                running[1].kill()  # streams go on across the end of a server
                running[1].start()
                for thread in threads:
                    thread.join()
            failures = [failure for each in runs for failure in each.failures]
            with open_url(url) as store:
                for reader in logs:
                    failures += reader.compare_with_log(Session.open(reader.session, store=store), running[1])
            failures += compare_with_store(url, load, directory, [each.session for each in runs])
            if failures:
                failures += [f"a server said: {each.stderr[-1500:]}" for each in running]
    events, answers = sum(len(each.hashes) for each in logs), sum(each.answers for each in runs)
    told_anew = sum(each.repeated for each in runs)
    figures = (
        f"{cuts.made + others.made} cuts, {cuts.resumed + others.resumed} gone on with elsewhere; "
        f"{events} events of logs and {answers} answers read, "
        f"{told_anew} steps told anew; {len(failures)} missed, repeated or not exact"
    )
    return Report(figures=figures, failures=failures)


class Reader:
    """Reads a stream through connections that are cut, each at a random byte."""

    longest = 12_000  # bytes until a cut

    def __init__(self, running: Sequence[ServerProcess], session: str, seed: str, cuts: CutBudget) -> None:
        self.running, self.session, self.cuts = running, session, cuts
        self.rng = random.Random(f"{type(self).__name__} {seed}")
        self.failures: list[str] = []
        self.last = ""  # id of the last frame that came whole
        self.place = (0, 0)
        self._server: ServerProcess | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.failures.append(f"{self.session}: {type(error).__name__}: {error}")

    def work(self) -> None:
        raise NotImplementedError

    def read_connection(self, method: str, path: str, **request: Any) -> Iterator[Frame]:
        """What comes on one connection until it is cut."""
        server = self.rng.choice(self.running)
        self.cuts.resumed += self._server is not None and server is not self._server
        self._server = server
        few = self.rng.random() < 0.2  # in the middle of the headers, for example
        headers = request.pop("headers", {}) | ({"Last-Event-ID": self.last} if self.last else {})
        try:
            wire = RawConnection(server.port, method, path, headers=headers, seconds=2.0, **request)
        except OSError:
            time.sleep(0.05)  # it is being started again
            return
        try:
            wire.send()
            yield from wire.frames(self.rng.randrange(1, 300 if few else self.longest))
            if wire.status not in (0, 200):
                raise RuntimeError(f"{wire.status} {wire.text!r}")
        except OSError:
            return  # nothing came for a while, or the server is gone
        finally:
            wire.reset()

    def check_position(self, frame: Frame) -> None:
        """Check that each frame with an id comes once, and in order."""
        if frame.id:
            if frame.place <= self.place:
                self.failures.append(f"{self.session}: {frame.event} {frame.id} was told again after {self.last}")
            self.last, self.place = frame.id, max(self.place, frame.place)


class LogReader(Reader):
    """All events of a log, and the deltas between them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.hashes: dict[int, str] = {}

    def work(self) -> None:
        while self.cuts.take():
            for frame in self.read_connection("GET", f"/sessions/{self.session}/events", headers=SSE):
                self.take(frame)

    def take(self, frame: Frame) -> None:
        if not frame.id:
            return
        before = self.place[0]
        self.check_position(frame)
        seq, n = frame.place
        if seq != (before if n else before + 1):
            self.failures.append(f"{self.session}: {frame.event} {frame.id} comes after the event {before}")
        if not n:
            self.hashes[seq] = frame.data["hash"]

    def compare_with_log(self, session: Session, server: ServerProcess) -> list[str]:
        """Read the rest without a cut; then the reader has all of the log, and nothing else."""
        if self.place[0] < session.head:
            headers = SSE | ({"Last-Event-ID": self.last} if self.last else {})
            wire = RawConnection(server.port, "GET", f"/sessions/{self.session}/events", headers=headers)
            wire.send()
            for frame in wire.frames():
                self.take(frame)
                if self.place[0] >= session.head:
                    break
            wire.reset()
        there = {event.seq: event.hash.hex() for event in session.events(limit=None)}
        wrong = [seq for seq in there.keys() | self.hashes.keys() if there.get(seq) != self.hashes.get(seq)]
        return [*self.failures, *([f"{self.session}: the events {wrong} are not those of the log"] if wrong else [])]


class RunReader(Reader):
    """Asks, and puts the answer together from what comes."""

    longest = 7000  # the last frame alone, with all messages of the turn, has half of that

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.answers = self.repeated = 0
        self._own = 0

    def work(self) -> None:
        while self.cuts.left > 0:
            self._own += 1
            self.ask(f"{self.session} {self._own}" + self.rng.choice(("", " tools")))

    def ask(self, question: str) -> None:
        self.last, self.place = "", (0, 0)
        self.blocks: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.step, self.is_over = 0, False
        self.question = question
        self.heard: list[str] = []
        began = time.monotonic()
        while not self.is_over:
            body = {"agent_id": "worker", "message": question}
            path, key = f"/sessions/{self.session}/message/stream", {"Idempotency-Key": question}
            self.cuts.take()
            self.heard.append("|")
            for frame in self.read_connection("POST", path, body=body, headers=key):
                self.check_position(frame)
                self.take(frame)
            if time.monotonic() - began > STUCK:
                raise RuntimeError(f"{question!r} has no end; the last was {self.last!r}")
        self.answers += 1

    def take(self, frame: Frame) -> None:
        data = frame.data
        self.heard.append(f"{frame.event} {frame.id}")
        if frame.event == "message_start":
            self.repeated += data["step"] == self.step
            self.step, self.blocks = data["step"], {}
        elif frame.event.endswith("_delta") and frame.event != "message_delta":
            text = data.get("text", data.get("input_json", ""))
            self.blocks[data["index"]] = self.blocks.get(data["index"], "") + text
        elif frame.event == "message_stop":
            self.counts["steps"] += 1
            self.check_step()
        elif frame.event == "tool_result":
            self.counts[data["call_id"]] += 1
        elif frame.event == "error":
            self.failures.append(f"{self.question!r} ended with {data}")
            self.is_over = True
        elif frame.event == "done":
            self.is_over = True
            self.check_end(data["response"])

    def check_step(self) -> None:
        texts = [self.blocks[index] for index in sorted(self.blocks)]
        by, rest = texts[0] if texts else "", texts[1:]
        last = self.step == self.steps
        if last and rest != [answer_to(self.question)]:
            self.failures.append(f"{self.question!r} was told as {rest}: {self.heard}")
        elif not last and rest != [json.dumps({"text": self.question}, separators=(",", ":"))] * 2:
            self.failures.append(f"{self.question!r} calls {rest}: {self.heard}")
        if not re.fullmatch(r"by \d+", by):
            self.failures.append(f"{self.question!r} was thought of as {by!r}")

    @property
    def steps(self) -> int:
        return 2 if "tools" in self.question else 1

    def check_end(self, response: dict[str, Any]) -> None:
        calls = [call["id"] for call in response["tool_calls"]]
        wanted = Counter({"steps": self.steps, **dict.fromkeys(calls, 1)})
        if self.counts != wanted or response["response"] != answer_to(self.question):
            self.failures.append(f"{self.question!r}: {dict(self.counts)} were told, not {dict(wanted)}")
