"""Detectors of seeded bugs in authentication, authorization and origin checks. Small proofs in one process.

They return what they found; nothing means all is well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastapi import APIRouter

from holdfast.server.http.strict_routes import StrictRoute
from tests.proofs.browsers import BrowserAttack, check_own_requests, list_attempts
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.permissions import PermissionAttack, check_keys_per_user, check_taken_names
from tests.proofs.raw_http import LARGE, SECONDS, SLOW, send_and_receive, send_slowly, shorten_head_limit
from tests.proofs.secured_server import SHARED, TOKEN, Caller, SecuredServer, make_canary

# One of every kind: with no key, with three that are no good, and with each right, name and tenant.
FEW = (
    "nobody",
    "wrong",
    "expired",
    "revoked",
    "acme alice read",
    "acme alice chat",
    "acme alice chat+approve",
    "acme alice write",
    "acme alice write+approve",
    "acme service read+approve",
    "acme service write",
    "acme bob write",
    "evil alice admin",
    "acme service admin",
    "default service read",
)
ENDLESS = 4.0  # seconds after which a connection that should be ended counts as kept


def _ask_as_every_caller(seed: int) -> list[str]:
    """Every route, asked by one of every kind."""
    with (
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, sessions=2) as server,
        Caller(server.port) as caller,
    ):
        quick = [
            *check_keys_per_user(caller, server),
            *check_taken_names(caller, server),
            *check_shared_state(caller, server),
        ]
        if quick:
            return quick
        attack = PermissionAttack(server, random.Random(seed), enough=1)
        attack.ask_every_route(caller, [server.contents.principals[name] for name in FEW])
        return attack.failures


def check_shared_state(caller: Caller, server: SecuredServer) -> Iterator[str]:
    """What all users of an app share is read by all of them, and written by none."""
    alice = server.contents.principals["acme alice write"]
    path = f"/sessions/{server.contents.sessions['acme', 'alice'][0].id}/state/shared?scope=app"
    answer = caller.ask("GET", path, alice.headers)
    if answer.status != 200 or answer.json["value"] != make_canary("acme", SHARED):
        yield f"GET {path} -> {answer.status} {answer.body[:200]!r}"
    for method, body in (("PUT", {"value": "mine now"}), ("DELETE", None)):
        answer = caller.ask(method, path, alice.headers, body)
        if answer.status != 403:
            yield f"{alice.name}: {method} {path} -> {answer.status} {answer.body[:200]!r}"


def _detect_unguarded_route(seed: int) -> list[str]:
    """A route without a declared permission."""
    with make_scratch_directory(memory=True) as directory:
        server = SecuredServer(directory, sessions=1)
        add_unguarded_route(server)
        with server, Caller(server.port) as caller:
            return list(check_unguarded_route(server, caller))


def add_unguarded_route(server: SecuredServer) -> None:
    router = APIRouter(route_class=StrictRoute)

    @router.get("/hole")
    async def hole() -> dict[str, str]:
        return {"told": make_canary("acme", SHARED)}

    server.app.include_router(router)


def check_unguarded_route(server: SecuredServer, caller: Caller) -> Iterator[str]:
    for who in server.contents.principals.values():
        answer = caller.ask("GET", "/hole", who.headers)
        if answer.status != 403:
            yield f"{who.name}: a route without a permission -> {answer.status} {answer.body[:200]!r}"
    if not any("/hole declares no permission" in each for each in PermissionAttack(server, random.Random(0)).failures):
        yield "a route without a permission is not noticed"


def _attack_from_browsers(seed: int) -> list[str]:
    """What browsers send, to a server that asks for no key."""
    with (
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, sessions=1, open=True, token=None) as server,
    ):
        attack = BrowserAttack(server, None)
        attack.run(random.Random(seed).sample(list(list_attempts()), 700))
        return attack.failures + list(check_own_requests(server, None))


def _leave_work_roots(seed: int) -> list[str]:
    """Directories that a session may not work in."""
    with make_scratch_directory(memory=True) as directory:
        root = directory / "roots" / "work"
        (root / "inner").mkdir(parents=True)
        with SecuredServer(directory, sessions=1, work_roots=(str(root),)) as server, Caller(server.port) as caller:
            return list(try_escapes(caller, root))


def try_escapes(caller: Caller, root: Path) -> Iterator[str]:
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


def _send_slow_requests(seed: int) -> list[str]:
    """One client of each kind that takes its time, and heads that are too large."""
    with (
        shorten_head_limit(SECONDS),
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, sessions=1, keep_alive=SECONDS, body_seconds=SECONDS) as server,
    ):
        return list(check_slow_requests(server))


def check_slow_requests(server: SecuredServer) -> Iterator[str]:
    with ThreadPoolExecutor(len(SLOW)) as pool:
        ends = pool.map(lambda kind: send_slowly(server.port, *SLOW[kind], patience=ENDLESS)[0], SLOW)
        yield from (f"{kind}: it never ends" for kind, end in zip(SLOW, ends, strict=True) if end is None)
    for kind, data in LARGE.items():
        status, answer = send_and_receive(server.port, data)
        if status not in (400, 431, None):
            yield f"{kind} of a megabyte -> {status} {answer[:100]!r}"


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "callers": _ask_as_every_caller,
    "unguarded routes": _detect_unguarded_route,
    "browsers": _attack_from_browsers,
    "work roots": _leave_work_roots,
    "slow clients": _send_slow_requests,
}
