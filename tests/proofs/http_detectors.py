"""Detectors of seeded bugs at the front door: who is let in, from where, and to what. Small proofs in one process.

They return what they found; nothing means all is well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastapi import APIRouter

from holdfast.server.http.strict_routes import StrictRoute
from tests.proofs.browsers import Siege, attempts, welcome
from tests.proofs.crashes import scratch
from tests.proofs.permissions import Attack, keys_are_ones_own, taken_names
from tests.proofs.raw_http import LARGE, SECONDS, SLOW, dripped, exchange, short_heads
from tests.proofs.secured_server import SHARED, TOKEN, Caller, House, canary

# One of every kind: with no key, with three that are no good, and with each right, name and tenant.
FEW = (
    "nobody",
    "wrong",
    "expired",
    "revoked",
    "acme alice read",
    "acme alice write",
    "acme bob write",
    "evil alice admin",
    "acme service admin",
    "house service read",
)
ENDLESS = 4.0  # seconds after which a connection that should be ended counts as kept


def _strangers(seed: int) -> list[str]:
    """Every route, asked by one of every kind."""
    with scratch(memory=True) as directory, House(directory, rooms=2) as house, Caller(house.port) as caller:
        quick = [*keys_are_ones_own(caller, house), *taken_names(caller, house), *shared_state(caller, house)]
        if quick:
            return quick
        attack = Attack(house, random.Random(seed), enough=1)
        attack.everything(caller, [house.furniture.principals[name] for name in FEW])
        return attack.failures


def shared_state(caller: Caller, house: House) -> Iterator[str]:
    """What all users of an app share is read by all of them, and written by none."""
    alice = house.furniture.principals["acme alice write"]
    path = f"/sessions/{house.furniture.rooms['acme', 'alice'][0].id}/state/shared?scope=app"
    answer = caller.ask("GET", path, alice.headers)
    if answer.status != 200 or answer.json["value"] != canary("acme", SHARED):
        yield f"GET {path} -> {answer.status} {answer.body[:200]!r}"
    for method, body in (("PUT", {"value": "mine now"}), ("DELETE", None)):
        answer = caller.ask(method, path, alice.headers, body)
        if answer.status != 403:
            yield f"{alice.name}: {method} {path} -> {answer.status} {answer.body[:200]!r}"


def _holes(seed: int) -> list[str]:
    """A route that somebody forgot to guard."""
    with scratch(memory=True) as directory:
        house = House(directory, rooms=1)
        with_hole(house)
        with house, Caller(house.port) as caller:
            return list(through_the_hole(house, caller))


def with_hole(house: House) -> None:
    router = APIRouter(route_class=StrictRoute)

    @router.get("/hole")
    async def hole() -> dict[str, str]:
        return {"told": canary("acme", SHARED)}

    house.app.include_router(router)


def through_the_hole(house: House, caller: Caller) -> Iterator[str]:
    for who in house.furniture.principals.values():
        answer = caller.ask("GET", "/hole", who.headers)
        if answer.status != 403:
            yield f"{who.name}: a route without a permission -> {answer.status} {answer.body[:200]!r}"
    if not any("/hole declares no permission" in each for each in Attack(house, random.Random(0)).failures):
        yield "a route without a permission is not noticed"


def _pages(seed: int) -> list[str]:
    """What browsers send, to a server that asks nobody for a key."""
    with scratch(memory=True) as directory, House(directory, rooms=1, open=True, token=None) as house:
        siege = Siege(house, None)
        siege.endure(random.Random(seed).sample(list(attempts()), 700))
        return siege.failures + list(welcome(house, None))


def _jail(seed: int) -> list[str]:
    """Directories that a session may not work in."""
    with scratch(memory=True) as directory:
        root = directory / "roots" / "work"
        (root / "inner").mkdir(parents=True)
        with House(directory, rooms=1, work_roots=(str(root),)) as house, Caller(house.port) as caller:
            return list(escapes(caller, root))


def escapes(caller: Caller, root: Path) -> Iterator[str]:
    """Ways out of a root, each tried when a session is made and when it is changed."""
    sibling = root.with_name(root.name + "-not")
    sibling.mkdir()
    for name, target in (("out", "/etc"), ("up", ".."), ("round", "inner/../.."), ("sibling", str(sibling))):
        (root / name).symlink_to(target)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    tries = ["/etc", "/", "/proc/self/root/etc", str(root.parent), str(sibling), f"{root}/..", f"{root}/inner/../.."]
    tries += [f"{root}/{name}" for name in ("out", "up", "round", "sibling", "out/..", "inner/../out", "missing")]
    tries += ["inner", "../work", ".", f"{root}\0/etc", f"//{sibling}", f"file://{root}", "~", str(root).upper()]
    made = caller.ask("POST", "/sessions", headers, {}).json["id"]
    for work_dir in tries:
        for method, path in (("POST", "/sessions"), ("PUT", f"/sessions/{made}")):
            answer = caller.ask(method, path, headers, {"work_dir": work_dir})
            if answer.status != 400:
                yield f"{method} {path} with work_dir {work_dir!r} -> {answer.status} {answer.body[:200]!r}"
    for work_dir in (str(root), f"{root}/inner", f"{root}/inner/."):
        answer = caller.ask("POST", "/sessions", headers, {"work_dir": work_dir})
        if answer.status != 201:
            yield f"work_dir {work_dir!r} is inside -> {answer.status} {answer.body[:200]!r}"


def _patience(seed: int) -> list[str]:
    """One client of each kind that takes its time, and heads that are too large."""
    with (
        short_heads(SECONDS),
        scratch(memory=True) as directory,
        House(directory, rooms=1, keep_alive=SECONDS, body_seconds=SECONDS) as house,
    ):
        return list(endless(house))


def endless(house: House) -> Iterator[str]:
    with ThreadPoolExecutor(len(SLOW)) as pool:
        ends = pool.map(lambda kind: dripped(house.port, *SLOW[kind], patience=ENDLESS)[0], SLOW)
        yield from (f"{kind}: it never ends" for kind, end in zip(SLOW, ends, strict=True) if end is None)
    for kind, data in LARGE.items():
        status, answer = exchange(house.port, data)
        if status not in (400, 431, None):
            yield f"{kind} of a megabyte -> {status} {answer[:100]!r}"


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "strangers": _strangers,
    "holes": _holes,
    "pages": _pages,
    "jail": _jail,
    "patience": _patience,
}
