"""Two servers on one PostgreSQL, and one of them is killed: `make demo-cluster`. No key and no network are needed.

Customers order at both servers, and a reader follows one of the sessions. During a payment, the server that runs it is
killed with kill -9. Customers and reader continue at the other server, and need only HTTP for it: the same
Idempotency-Key, and the id of the last event. At the end the orders, calls and payments are counted; the exit code is 1
if anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2

HERE = Path(__file__).parent
CUSTOMERS, ORDERS = 6, 3
WATCHED = "customer-1"
PATIENCE = 120.0  # seconds that each wait may take, enough for a slow machine
TOKEN = secrets.token_urlsafe(32)
KEY = {"Authorization": f"Bearer {TOKEN}"}
_ADDRESS = re.compile(r"holdfast serves (http://\S+)")


class Server:
    """`holdfast serve examples/shop.py` in its own process."""

    def __init__(self, name: str, store: str, folder: Path) -> None:
        self.name, self._log = name, folder / f"server-{name}.log"
        environment = {
            "HOLDFAST_STORE": store,
            "HOLDFAST_TOKEN": TOKEN,
            "SHOP_FOLDER": str(folder),
            "SHOP_SECONDS": "2",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).parent / "holdfast", "serve", HERE / "shop.py", "--port", "0"],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> int:
        return self._process.pid

    def wait(self) -> str:
        """Wait until the server answers, and return its address."""
        for _ in patiently():
            if found := _ADDRESS.search(self._log.read_text()):
                return found[1]
            if self._process.poll() is not None:
                break
        raise SystemExit(f"server {self.name} did not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """Kill the server with kill -9: it can flush nothing and runs no handler."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE)


def patiently() -> Iterator[None]:
    """Yield once for each try, with a pause in between; end when PATIENCE is over."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def order(addresses: list[str], customer: str, number: int) -> dict[str, Any]:
    """Order once: repeat the request with the same key, at each server in turn, until one answers."""
    text = f"order {number} of {customer}"
    with httpx2.Client(headers=KEY | {"Idempotency-Key": text}, timeout=PATIENCE) as http:
        for attempt, _ in enumerate(patiently()):
            address = addresses[attempt % len(addresses)]
            try:
                answer = http.post(
                    f"{address}/sessions/{customer}/message", json={"agent_id": "clerk", "message": text}
                )
            except httpx2.TransportError:
                continue  # that server is dead: ask the other one
            if answer.status_code not in (429, 503):
                answer.raise_for_status()
                return dict(answer.json())
    raise SystemExit(f"nobody answered {text!r}")


class Reader:
    """Follows the log of a session at any server that answers. It continues after the last event that it has."""

    def __init__(self, addresses: list[str], session: str) -> None:
        self._addresses, self._session = addresses, session
        self.ids: list[tuple[int, int]] = []  # ids of all frames, in the order of arrival
        self.went_on_after = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def events(self) -> list[int]:
        """Return the numbers of the events of the log, without the frames in between, which are deltas of an answer."""
        return [seq for seq, n in list(self.ids) if n == 0]

    def _follow(self) -> None:
        with httpx2.Client(headers=KEY | {"Accept": "text/event-stream"}, timeout=PATIENCE) as http:
            for attempt, _ in enumerate(patiently()):
                address = self._addresses[attempt % len(self._addresses)]
                try:
                    self._read(http, f"{address}/sessions/{self._session}/events")
                except httpx2.TransportError:
                    self.went_on_after = self.events[-1] if self.ids else 0

    def _read(self, http: httpx2.Client, url: str) -> None:
        headers = {"Last-Event-ID": _text(self.ids[-1])} if self.ids else {}
        with http.stream("GET", url, headers=headers) as response:
            for frame in httpx2.EventSource(response):
                if frame.id and frame.event != "ping":
                    seq, _, n = frame.id.partition(".")
                    self.ids.append((int(seq), int(n or 0)))


def _text(place: tuple[int, int]) -> str:
    return f"{place[0]}.{place[1]}" if place[1] else str(place[0])


class Story:
    """The course of the example: prints each step, and collects the errors that the checks at the end find."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.wrong: list[str] = []

    def tell(self) -> None:
        with ExitStack() as stack:
            one, two = [stack.enter_context(Server(name, self._store, self._folder)) for name in "AB"]
            a, b = one.wait(), two.wait()
            print(f"1. Two servers share one PostgreSQL: A at {a}, B at {b}. None of them leads.")
            http = stack.enter_context(httpx2.Client(base_url=b, headers=KEY, timeout=PATIENCE))
            customers = [f"customer-{number}" for number in range(1, CUSTOMERS + 1)]
            for customer in customers:
                http.post("/sessions", json={"id": customer}).raise_for_status()
            reader = Reader([a, b], WATCHED)
            print(f"2. {CUSTOMERS} customers order {ORDERS} times each, half of them at A. A reader follows {WATCHED}.")
            pool = stack.enter_context(ThreadPoolExecutor(CUSTOMERS))
            places = [[a, b], [b, a]] * CUSTOMERS
            talks = [pool.submit(_talk, place, customer) for place, customer in zip(places, customers, strict=False)]
            order = self._kill_inside_a_payment(one)
            self._await_takeover(http, order)
            answers = [answer for talk in talks for answer in talk.result()]
            self._count(http, customers, answers, reader)

    def _kill_inside_a_payment(self, server: Server) -> str:
        """Wait until the server runs a payment of the customer whose session is followed, and kill the server."""
        for _ in patiently():
            begun = [each["order"] for each in self._ran("charge") if each["process"] == server.process]
            if watched := [order for order in begun if WATCHED in order]:
                time.sleep(0.5)  # a quarter of a payment: the other customers of A have payments under way by now
                server.kill()
                self._killed_at = time.monotonic()
                print(f"3. A is killed (kill -9) while it charges for {watched[-1]}.")
                print("   The bank has taken the money, the log does not know it, and nobody is left who does.")
                return str(watched[-1])
        raise SystemExit("A never came to charge for anything")

    def _await_takeover(self, http: httpx2.Client, order: str) -> None:
        for _ in patiently():
            if http.get(f"/sessions/{WATCHED}/events", params={"types": "turn.resumed"}).json()["events"]:
                break
        taken = time.monotonic() - self._killed_at
        print(f"4. B takes {order} over {taken:.1f} s later, because it can see that A's process is dead.")
        print("   Were A on another machine, it would wait for A's lease to end: 15 s (HOLDFAST_LEASE_SECONDS).")

    def _count(self, http: httpx2.Client, customers: list[str], answers: list[dict[str, Any]], reader: Reader) -> None:
        expected = CUSTOMERS * ORDERS
        self._expect(len(answers) == expected, f"{len(answers)} of {expected} orders were answered")
        self._expect(all(answer["status"] == "finished" for answer in answers), "an order was not finished")
        for customer in customers:
            self._check_session(http, customer)
        charged = Counter(each["order"] for each in self._ran("charge"))
        again = sorted(order for order, times in charged.items() if times > 1)
        payments = Counter(path.read_text() for path in self._folder.glob("payment-*"))
        lost, doubled = expected - len(payments), sum(times - 1 for times in payments.values())
        self._expect(not lost and not doubled, f"payments: {dict(payments)}")
        print(f"   It charges again for {', '.join(again)}:")
        print("   the calls have the same keys as before, so the bank takes the money once.")
        print("   What had its result in the log does not run again.")
        head = self._read_to_the_end(http, reader)
        print(f"   The reader goes on at B after event {reader.went_on_after}, and has events 1 to {head}, each once.")
        print(
            f"5. {expected} orders, {len(answers)} answers, {len(payments)} payments: {lost} lost, {doubled} doubled."
        )
        print("   " + ("Something is wrong:" if self.wrong else f"The hash chains of {len(customers)} sessions hold."))

    def _check_session(self, http: httpx2.Client, customer: str) -> None:
        """Check: each order is there once, with one answer, no finished call ran again, and the log verifies."""
        said = http.get(f"/sessions/{customer}/history", params={"limit": 1000}).json()["messages"]
        asked = [each["content"] for each in said if each["role"] == "user"]
        answers = [each["content"] for each in said if each["role"] == "assistant" and each["content"]]
        orders = [f"order {number} of {customer}" for number in range(1, ORDERS + 1)]
        self._expect(asked == orders, f"{customer} asked {asked}")
        is_answered = len(answers) == ORDERS and all(order in each for order, each in zip(orders, answers, strict=True))
        self._expect(is_answered, f"{customer} was told {answers}")
        types = ["tool.called", "tool.returned", "turn.resumed"]
        page = http.get(f"/sessions/{customer}/events", params={"types": types, "limit": 1000}).json()
        self._check_calls(page["events"])
        verdict = http.get(f"/sessions/{customer}/verify").json()
        self._expect(verdict["ok"], f"{customer}: {verdict['reason']}")

    def _check_calls(self, events: list[dict[str, Any]]) -> None:
        """Check that a call ran again only if its turn was resumed before the result of the call was in the log."""
        open_calls: dict[str, tuple[str, str]] = {}  # by call id: tool and order
        allowed: dict[str, int] = {}  # how often each call may have run
        for event in events:
            data, call = event["data"], event["data"].get("call_id")
            if event["type"] == "turn.resumed":
                allowed.update({each: allowed[each] + 1 for each in open_calls})
            elif event["type"] == "tool.called":
                open_calls[call] = data["name"], data["arguments"]["order"]
                allowed.setdefault(call, 1)
            else:
                tool, order = open_calls.pop(call)
                ran = sum(each["order"] == order for each in self._ran(tool))
                self._expect(1 <= ran <= allowed[call], f"{tool} for {order} ran {ran} times")

    def _read_to_the_end(self, http: httpx2.Client, reader: Reader) -> int:
        head = int(http.get(f"/sessions/{WATCHED}").json()["head"])
        for _ in patiently():
            if reader.ids and reader.ids[-1][0] >= head:
                break
        self._expect(reader.events == list(range(1, head + 1)), f"the reader has {reader.events}, not 1 to {head}")
        self._expect(reader.ids == sorted(set(reader.ids)), "the reader was told something twice, or out of order")
        self._expect(reader.went_on_after > 0, "the reader's stream was not cut")
        return head

    def _ran(self, tool: str) -> list[dict[str, Any]]:
        """Return a record for each time that a tool ran, in any process."""
        file = self._folder / "ran.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if each["tool"] == tool]

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.wrong.append(otherwise)


def _talk(addresses: list[str], customer: str) -> list[dict[str, Any]]:
    return [order(addresses, customer, number) for number in range(1, ORDERS + 1)]


@contextmanager
def database(given: str | None) -> Iterator[str]:
    """Yield the given database, or a new one on the PostgreSQL that the tests use too."""
    if given is not None:
        yield given
        return
    from tests.kit.postgres import PostgresServer

    with PostgresServer() as server:
        yield server.database()


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m examples.cluster", description="Two servers, and one is killed.")
    options.add_argument("--store", metavar="URL", help="an empty PostgreSQL database; without it, one is started")
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-cluster-") as folder,
        database(options.parse_args().store) as store,
    ):
        story = Story(store, Path(folder))
        story.tell()
    for each in story.wrong:
        print(f"   - {each}")
    return 1 if story.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
