"""B13: every caller asks every route for every id. No caller reads or changes what another user owns.

The table of routes says who may ask each, and how it is asked so that it says yes; a route that is not there, or that
declares another permission, fails the proof. Each id in a call is the caller's own, a foreign one or one that there is
not, and the answers to the last two must be the same. What is kept is read past the server, before and after.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from holdfast import Session
from holdfast.server.auth import permission_of
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.permission_table import CALLS, FIELDS, Call, start_waiting_turn
from tests.proofs.secured_server import (
    COMMON,
    OWNERS,
    STORED,
    Answer,
    Caller,
    Owner,
    Principal,
    SecuredServer,
    SessionIds,
    create_session,
    dump_store,
    make_canary,
    name_tenant_agent,
    store_agent,
)
from tests.proofs.work_dirs import check_later_work_dirs, check_work_dirs, make_folders

ENOUGH = 20  # failures, after which the rest is not looked for
MISSING = "there-is-no-such-thing"
SSE = {"Accept": "text/event-stream"}


STREAMED = "GET /sessions/{session_id}/events"  # asked for as JSON and as a stream
_IN_PATH = {
    "session_id": "$session",
    "agent_id": "$mine",
    "fact_id": "$fact",
    "run_id": "$run",
    "call_id": "$call",
    "name": "$name",
    "key": "$key",
}
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the application, and how it is asked."""

    name: str  # "GET /sessions"
    call: Call
    fields: str = ""  # the fields that the call is about

    @property
    def permission(self) -> str:
        return self.call.by

    @property
    def label(self) -> str:
        return f"{self.name} {self.fields}".rstrip()

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.name.partition(" ")[2]

    @property
    def places(self) -> list[str]:
        """The ids that it takes."""
        found = [_IN_PATH[name] for name in _PARAMETER.findall(self.path)]
        found += [value for value in self.call.query.values() if value.startswith("$")]
        found += [value for value in (self.call.body or {}).values() if str(value).startswith("$")]
        return [each for each in found if each not in ("$name", "$key", "$seq", "$export", "$limited")]

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def fill_in(self, values: dict[str, Any]) -> tuple[str, Any]:
        """The address and the body."""
        target = _PARAMETER.sub(lambda match: quote(str(values[_IN_PATH[match.group(1)]]), safe=""), self.path)
        query = {name: values.get(value, value) for name, value in self.call.query.items()}
        query = {name: value for name, value in query.items() if value is not None}
        if query:
            target += "?" + urlencode(query)
        body = self.call.body
        if isinstance(body, dict):
            body = {name: values.get(value, value) if isinstance(value, str) else value for name, value in body.items()}
            body = {name: value for name, value in body.items() if value is not None}
        return target, body


def list_routes(app: FastAPI) -> tuple[list[Route], list[str]]:
    """Every route with its call, and what is wrong with the list."""
    found, wrong = [], []
    for each in iter_route_contexts(app.routes):
        for method in sorted(getattr(each, "methods", None) or ["?"]):
            name = f"{method} {getattr(each, 'path', '?')}"
            permission = permission_of(each)
            if permission is None:
                wrong.append(f"{name} declares no permission")
            if name not in CALLS:
                wrong.append(f"{name} has no case: say in CALLS how it is asked")
            else:
                found.append(Route(name, CALLS[name]))
                if permission is not None and permission != CALLS[name].by:
                    wrong.append(f"{name} declares {permission}, and should declare {CALLS[name].by}")
    found += [Route(name, call, f"with {', '.join(call.body)} for {call.by}") for name, call in FIELDS]
    gone = CALLS.keys() - {route.name for route in found}
    return found, wrong + [f"{name} has a case, and is no route any more" for name in sorted(gone)]


class PermissionAttack:
    """Every caller asks every route. Complaints are in `failures`."""

    def __init__(self, server: SecuredServer, rng: random.Random, *, enough: int = ENOUGH) -> None:
        self.server, self.rng, self.enough = server, rng, enough
        self.routes, self.failures = list_routes(server.app)
        self.cases = 0
        self._complained: set[tuple[str, ...]] = set()
        self.answered: Counter[str] = Counter()  # by route: how often it said yes
        self._numbers = count()
        self._pools: dict[Owner, list[SessionIds]] = {}
        owners = {(who.tenant, who.user) for who in server.contents.principals.values()}
        self._exports = {owner: self._make_export(owner) for owner in owners}
        self._known: dict[tuple[str, ...], tuple[int, str]] = {}

    # -- what is asked for ----------------------------------------------------------------------------------------

    def make_session(self, who: Principal, prepare: Callable[[Session], object] | None = None) -> SessionIds:
        """A session of theirs that may be spoiled."""
        store = self.server.store.for_tenant(who.tenant)
        made = create_session(store, f"fresh-{next(self._numbers)}", who.user, alone=True)
        if prepare is None:
            return made
        session = Session.open(made.id, store=store, agent=self.server.server.catalog.find(store, "helper"))
        prepare(session)
        call_id = session.pending[0].call_id if session.pending else ""
        return SessionIds(id=made.id, fact_id=made.fact_id, run_id=made.run_id, call_id=call_id, seq=made.seq)

    def choose_pooled_session(self, who: Principal) -> SessionIds:
        """A session of theirs that others of the same owner spoil as well, and now and then a new one."""
        pool = self._pools.setdefault((who.tenant, who.user), [])
        if len(pool) < 4 or self.rng.random() < 0.02:
            pool.append(self.make_session(who, self.rng.choice([None, start_waiting_turn])))
            del pool[:-4]
        return self.rng.choice(pool)

    def list_own_values(self, who: Principal, route: Route, mine: SessionIds) -> dict[str, Any]:
        """What `$name` stands for when all is theirs."""
        agent = STORED
        if route.changes and "{agent_id}" in route.path and who.may("admin"):
            agent = f"agent-{next(self._numbers)}"
            store_agent(self.server.store.for_tenant(who.tenant), agent)
        found = {
            "$session": mine.id,
            "$other": mine.id,
            "$mine": agent,
            "$agent": "helper",
            "$fact": mine.fact_id,
            "$run": mine.run_id,
            "$call": mine.call_id or "none",
            "$name": "note",
            "$key": "note",
            "$seq": mine.seq,
            "$user": who.user,
            "$new": f"new-{next(self._numbers)}",
        }
        if route.name == "POST /sessions/import":
            found["$export"], found["$limited"] = self._exports[who.tenant, who.user]
        return found

    def _make_export(self, owner: Owner) -> tuple[str, str]:
        """What an owner may import; and with a system prompt, what the application may import."""
        store = self.server.store.for_tenant(owner[0])
        plain = Session(f"exported-{next(self._numbers)}", store=store, user_id=owner[1], state={"note": 1})
        made = create_session(store, f"exported-{next(self._numbers)}", owner[1], alone=True)
        return plain.export(), Session.open(made.id, store=store).export()

    def foreign(self, who: Principal, place: str) -> list[str]:
        """Ids of this kind that are there, but not for them."""
        sessions = [
            each for owner in OWNERS if not who.owns(owner) for each in self.server.contents.sessions[owner][:1]
        ]
        if place in ("$session", "$other"):
            return [each.id for each in sessions if each.id != COMMON and not self._has(who, each.id)]
        if place in ("$mine", "$agent"):
            return [name_tenant_agent(tenant) for tenant in ("", "acme", "evil") if tenant != who.tenant]
        if place == "$user":
            return ["bob" if who.user == "alice" else "alice"] if who.user or who.tenant != "acme" else []
        kinds = {"$fact": "fact_id", "$run": "run_id", "$call": "call_id"}
        return [getattr(each, kinds[place]) for each in sessions] if place in kinds else []

    def _has(self, who: Principal, id: str) -> bool:
        """Whether a session of this name is theirs as well: names are counted in each tenant."""
        owners = [owner for owner in OWNERS if who.owns(owner)]
        return any(each.id == id for owner in owners for each in self.server.contents.sessions[owner])

    # -- asking -----------------------------------------------------------------------------------------------------

    def complain(self, kind: str, route: Route, text: str) -> None:
        """Record the first complaint of each kind and route."""
        if (kind, route.label) not in self._complained:
            self._complained.add((kind, route.label))
            self.failures.append(text)

    def ask(
        self,
        caller: Caller,
        who: Principal,
        route: Route,
        values: dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Ask, and check what holds for every answer."""
        self.cases += 1
        target, body = route.fill_in(values)
        answer = caller.ask(route.method, target, who.headers | route.call.headers | (headers or {}), body)
        self.check(who, route, answer, f"{who.name}: {route.method} {target} {str(body)[:200]}")
        return answer

    def check(self, who: Principal, route: Route, answer: Answer, what: str) -> None:
        text = answer.body.decode(errors="replace")
        if answer.status >= 500 and not _is_unavailable(answer):
            self.complain("fails", route, f"{what} -> {answer.status} {text[:200]}")
        if leaked := [each for each in who.foreign if each in text or each in str(answer.headers)]:
            self.complain("tells", route, f"{what} -> {answer.status} tells {leaked} of somebody else")
        permission = route.permission
        if who.may(permission):
            if answer.status == 401:
                self.complain("shut", route, f"{what} -> 401, and the key is good")
        elif route.fields and who.role is not None and _is_not_judged(answer):
            pass
        elif answer.status != (401 if who.role is None else 403):
            self.complain("open", route, f"{what} -> {answer.status} {text[:200]}, and they may not {permission}")
        else:
            # A caller without the permission learns nothing: the answer is the same for every id.
            kind = (route.label if route.fields else permission, who.role or "", str(who.approves), who.user or "")
            found = answer.status, strip_ids(answer, {})
            known = self._known.setdefault(kind, found)
            if found != known:
                self.complain("differs", route, f"{what} -> {found}, and elsewhere {known}")

    # -- every route, every caller, every id -------------------------------------------------------------------------

    def ask_every_route(self, caller: Caller, everybody: list[Principal]) -> None:
        """Each route with what is one's own, then with each of its ids foreign or missing."""
        for who in everybody:
            before = dump_store(self.server.path)
            for route in self.routes:
                self.ask_route(caller, who, route)
                if len(self.failures) >= self.enough:
                    return
            self.failures += [
                f"{who.name}: {each}" for each in before.list_changes(dump_store(self.server.path), by=who)
            ]

    def ask_route(self, caller: Caller, who: Principal, route: Route) -> None:
        is_allowed = who.may(route.permission)
        mine = self._choose_own_session(who, route, is_allowed)
        values = self.list_own_values(who, route, mine)
        answer = self.ask(caller, who, route, values)
        self.answered[route.label] += answer.status < 300
        if is_allowed and answer.status == 403:
            self.complain("shut", route, f"{who.name}: {route.label} -> 403 {answer.body[:200]!r}, and they may")
        if route.name == STREAMED:
            self.ask(caller, who, route, values, SSE)
        for place in route.places:
            if place == "$new" or (place == "$user" and values[place] is None and who.role is not None):
                continue
            mine = self._choose_own_session(who, route, is_allowed)
            values = self.list_own_values(who, route, mine)
            missing = values | {place: MISSING}
            absent = self.ask(caller, who, route, missing)
            if is_allowed and place != "$user" and absent.status < 400:
                self.complain("finds", route, f"{who.name}: {route.name} with no such {place} -> {absent.status}")
            for id in self.foreign(who, place):
                theirs = self.ask(caller, who, route, values | {place: id})
                told = theirs.status, strip_ids(theirs, {id: "ID"})
                if told != (absent.status, strip_ids(absent, {MISSING: "ID"})):
                    text = f"{who.name}: {route.name} with {place} of somebody else -> {told}, "
                    text += f"with one that there is not -> {absent.status} {strip_ids(absent, {MISSING: 'ID'})}"
                    self.complain("tells apart", route, text)

    def _choose_own_session(self, who: Principal, route: Route, is_allowed: bool) -> SessionIds:
        """A session that the caller owns; for a caller without sessions, one of alice."""
        sessions = self.server.contents.sessions
        if is_allowed and "{session_id}" in route.path and (route.changes or (who.tenant, who.user) not in sessions):
            return self.make_session(who, route.call.prepare)
        return sessions.get((who.tenant, who.user), sessions["acme", "alice"])[0]

    # -- random requests ----------------------------------------------------------------------------------------------

    def ask_random_routes(self, caller: Caller, who: Principal, size: int) -> None:
        """Random requests of one caller, with tricks; then look whether anything changed that is not theirs."""
        before = dump_store(self.server.path)
        for _ in range(size):
            route = self.rng.choice(self.routes)
            can_own = who.role is not None and who.may("chat")
            sessions = self.server.contents.sessions
            mine = (
                self.choose_pooled_session(who)
                if can_own
                else sessions.get((who.tenant, who.user), sessions["acme", "alice"])[0]
            )
            values = self.list_own_values(who, route, mine)
            denied = False
            for place in route.places:
                if place == "$new":
                    continue
                kind = self.rng.choice(["own", "own", "foreign", "missing", "hostile"])
                others = self.foreign(who, place)
                if kind == "foreign" and others:
                    values[place] = self.rng.choice(others)
                elif kind == "missing":
                    values[place] = MISSING
                elif kind == "hostile":
                    values[place] = self.rng.choice(HOSTILE)(str(self.rng.choice(others or [mine.id])))
                denied |= kind in ("foreign", "missing") and place == "$session" and bool(others or kind == "missing")
            answer = self.ask_with_tricks(caller, who, route, values)
            if denied and answer.status < 400 and route.permission != "public":
                text = f"{who.name}: {route.fill_in(values)} -> {answer.status}, and it is not theirs"
                self.complain("gives", route, text)
            if len(self.failures) >= self.enough:
                return
        self.failures += [f"{who.name}: {each}" for each in before.list_changes(dump_store(self.server.path), by=who)]

    def ask_with_tricks(self, caller: Caller, who: Principal, route: Route, values: dict[str, Any]) -> Answer:
        """With headers and parameters that some servers believe."""
        headers = dict(self.rng.choice(TRICKS)) if self.rng.random() < 0.4 else {}
        if route.method == "POST" and self.rng.random() < 0.3:
            headers["Idempotency-Key"] = f"k{self.rng.randrange(6)}"
        if route.name == STREAMED and self.rng.random() < 0.1:
            headers |= SSE
        target, body = route.fill_in(values)
        if self.rng.random() < 0.2:
            name, value = self.rng.choice(PARAMETERS)
            target += ("&" if "?" in target else "?") + urlencode({name: value})
        if isinstance(body, dict) and self.rng.random() < 0.2:
            body = body | dict([self.rng.choice(PARAMETERS)])
        self.cases += 1
        answer = caller.ask(route.method, target, who.headers | headers, body)
        what = f"{who.name}: {route.method} {target} {str(body)[:200]} {headers}"
        if _is_routed(target):
            self.check(who, route, answer, what)
        elif leaked := [each for each in who.foreign if each.encode() in answer.body]:
            self.complain("tells", route, f"{what} -> {answer.status} tells {leaked} of somebody else")
        return answer


def strip_ids(answer: Answer, ids: dict[str, str]) -> str:
    """A body without what must differ: the request's id, and the id that was asked for."""
    text = re.sub(r'"request_id":"[^"]*"', '"request_id":""', answer.body.decode(errors="replace"))
    for id, shown in ids.items():
        text = text.replace(id, shown)
    return text


def _is_unavailable(answer: Answer) -> bool:
    return answer.status == 503 and answer.headers.get("retry-after") is not None


def _is_not_judged(answer: Answer) -> bool:
    """Whether the fields of a request were not looked at: no route takes its body, or its Idempotency-Key was used."""
    return answer.status in (400, 409, 422) or "idempotency-replayed" in answer.headers


def _is_routed(target: str) -> bool:
    """Whether it certainly leads to the route it was made for: an encoded slash may lead to another one."""
    path = target.partition("?")[0].lower()
    return "%2f" not in path and "//" not in path and "%0" not in path


HOSTILE: list[Callable[[str], str]] = [
    lambda id: f"../{id}",
    lambda id: f"{id}/",
    lambda id: f"{id}/history",
    lambda id: f"./{id}",
    lambda id: f"{id}\0",
    lambda id: f"{id}\0.json",
    lambda id: f"{id} ",
    lambda id: f" {id}",
    lambda id: id.upper(),
    lambda id: f"acme/{id}",
    lambda id: f"{id}%00",
    lambda id: f"%2e%2e%2f{id}",
    lambda id: f"{id}' OR '1'='1",
    lambda id: f"{id}\r\nX-Tenant: acme",
    lambda id: id.replace("a", "\u0430"),
    lambda id: f"{id}\u200b",
    lambda id: "*",
    lambda id: "%",
    lambda id: "..",
    lambda id: ".",
    lambda id: id * 100,
]
TRICKS: list[dict[str, str]] = [
    {"X-User-Id": "alice", "X-Tenant": "acme"},
    {"X-Tenant-Id": "acme", "X-Forwarded-User": "alice", "X-Remote-User": "alice"},
    {"X-Original-URL": "/health", "X-Rewrite-URL": "/health"},
    {"X-HTTP-Method-Override": "GET", "X-Method-Override": "DELETE"},
    {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost", "Forwarded": "for=127.0.0.1"},
    {"Cookie": "token=hf_1; session=alice-0"},
    {"X-Api-Version": "0", "X-Admin": "true", "X-Role": "admin"},
    {"Accept": "text/html"},
]
PARAMETERS: list[tuple[str, str]] = [
    ("tenant", "acme"),
    ("user", "alice"),
    ("role", "admin"),
    ("key", "hf_1"),
    ("access_token", "hf_1"),
    ("scope", "user"),
    ("scope", "app"),
]


def check_keys_per_user(caller: Caller, server: SecuredServer) -> Iterator[str]:
    """An Idempotency-Key that two users have chosen is two keys."""
    people = [server.contents.principals[name] for name in ("acme alice write", "acme bob write", "evil alice write")]
    given = {"Idempotency-Key": "chosen-twice"}
    for path, body in (("/sessions", {}), ("/sessions", {"title": "x"})):
        for who in people:
            answer = caller.ask("POST", path, who.headers | given, body)
            if body and answer.status != 422:
                yield f"{who.name}: the same key with another body -> {answer.status}"
            elif not body and (answer.status != 201 or answer.json["user_id"] != who.user):
                yield f"{who.name}: a key that somebody else has used as well -> {answer.status} {answer.body[:200]!r}"
            elif not body and "idempotency-replayed" in answer.headers:
                yield f"{who.name}: got the answer of somebody else"


def check_taken_names(caller: Caller, server: SecuredServer) -> Iterator[str]:
    """A name that another user has is taken, and the answer reveals nothing else; in another tenant it is free."""
    people = server.contents.principals
    name = server.contents.sessions["acme", "bob"][-1].id
    alice, evil = people["acme alice write"], people["evil alice write"]
    own = server.contents.sessions["acme", "alice"][0].id
    for path, body in (
        ("/sessions", {"id": name}),
        ("/sessions", {"id": name, "exist_ok": True}),
        (f"/sessions/{own}/fork", {"id": name}),
        (f"/sessions/{own}/successor", {"id": name}),
    ):
        answer = caller.ask("POST", path, alice.headers, body)
        if answer.status != 409 or make_canary("acme", "bob").encode() in answer.body:
            yield f"{alice.name}: POST {path} {body} -> {answer.status} {answer.body[:200]!r}"
    answer = caller.ask("POST", "/sessions", evil.headers, {"id": name})
    if answer.status != 201:
        yield f"a name that another tenant has -> {answer.status} {answer.body[:200]!r}"


@proof("B13", ci=12_000, long=500_000)
def authorization(size: int, seed: int) -> Report:
    """Every route, every caller, every id of another user; then random requests with tricks, until it is enough."""
    rng = random.Random(seed)
    with (
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, work_roots=(str(make_folders(directory / "work")),)) as server,
        Caller(server.port) as caller,
    ):
        attack = PermissionAttack(server, rng)
        everybody = list(server.contents.principals.values())
        attack.ask_every_route(caller, everybody)
        attack.failures += [*check_keys_per_user(caller, server), *check_taken_names(caller, server)]
        attack.failures += check_work_dirs(caller, server, directory / "work")
        attack.failures += check_later_work_dirs(caller, server, directory / "work")
        counted = attack.cases
        silent = [each.label for each in attack.routes if not attack.answered[each.label] and not each.call.refuses]
        attack.failures += [f"{name} said yes to nobody: its refusals prove nothing" for name in silent]
        while attack.cases < size and len(attack.failures) < ENOUGH:
            for who in rng.sample(everybody, len(everybody)):
                attack.ask_random_routes(caller, who, max(1, min(200, size // len(everybody))))
    figures = (
        f"{len(attack.routes)} routes x {len(everybody)} callers: {counted:,} cases, and "
        f"{attack.cases - counted:,} at random; {len(attack.failures)} wrong"
    )
    return Report(figures=figures, failures=attack.failures)
