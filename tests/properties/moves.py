"""The moves of the game that write: each with what the model says must come of it."""

from __future__ import annotations

import json
from typing import Any

from holdfast import Message, Session
from tests.properties.model import Happened, Point, Refused, Told
from tests.properties.table import ANY, GONE, KEYS, NAMES, STATE, WORDS, Table, World, said

SCOPES = ("session", "session", "user", "app", "temp")
MOVES = {
    "pause": "paused",
    "resume": "resumed",
    "close": "closed",
    "archive": "archived",
    "reopen": "reopened",
}
FIELDS = ("title", "system", "metadata")


class Moves(Table):
    """Opening, saying, setting, forking, taking turns, taking out and in, deleting."""

    # -- opening, forking, deleting ----------------------------------------------------------------------------------

    def open(self) -> None:
        name, options = self.rng.choice(self.names), self.options()
        made: list[Told] = []
        raw = self.act(
            f"Session({name!r}, {options!r})",
            lambda world: Session(name, store=world.store, **options),
            lambda: made.append(self._opened(name, options)) or ANY,
        )
        self.hold(raw, made[0] if made else None)

    def _opened(self, name: str, options: dict[str, Any]) -> Told:
        told = self.shelf.names.get(name)
        changes: dict[str, Any] = {field: options[field] for field in FIELDS if field in options}
        first = [Happened("set", None, {"name": key, "value": one}) for key, one in options.get("state", {}).items()]
        first += [Happened("said", None, said(message)) for message in options.get("messages", ())]
        if told is None:
            told = self.shelf.put(name, Told(options.get("user_id"), options.get("app_name")))
            told.tell(Happened("changed", None, changes), *first)
            return told
        for owner in ("user_id", "app_name"):
            if options.get(owner) not in (None, getattr(told, owner)):
                raise Refused("session_mismatch")
        if first:
            if told.now.visible or told.now.state:
                raise Refused("invalid_argument")
            told.tell(*first)
        changes = {field: value for field, value in changes.items() if told.now.fields.get(field) != value}
        if changes:
            told.tell(Happened("changed", None, changes))
        return told

    def reopen_by_name(self) -> None:
        name = self.rng.choice((*self.names, "nobody"))
        raw = self.act(
            f"open({name!r})", lambda world: Session.open(name, store=world.store), lambda: self._there(name)
        )
        self.hold(raw, self.shelf.names.get(name))

    def _there(self, name: str) -> object:
        if name not in self.shelf.names:
            raise Refused(GONE)
        return ANY

    def fork(self) -> None:
        place, held = self.one()
        name = self.rng.choice((*self.names, *self.names, "bad/name"))
        at = self.rng.choice((None, self.rng.randint(-1, held.told.head + 1)))
        made: list[Told] = []

        def expected() -> object:
            if "/" in name:
                raise Refused("invalid_id")
            if held.told.deleted:
                raise Refused(GONE)
            made.append(self.shelf.put(name, held.told.forked(held.told.settled(held.told.head if at is None else at))))
            return ANY

        raw = self.act(f"fork({name!r}, {at})", lambda world: world.held[place].fork(name, at=at), expected)
        self.hold(raw, made[0] if made else None)

    def delete(self) -> None:
        name = self.rng.choice(NAMES)
        self.act(f"delete({name!r})", lambda world: world.store.delete(name), lambda: self.shelf.delete(name))

    # -- messages --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        place, held = self.one()
        messages, once = [self.message() for _ in range(self.rng.randint(1, 3))], None
        self.act(
            f"add_messages({len(messages)})",
            lambda world: world.held[place].add_messages(messages, once=once),
            lambda: held.told.tell(*[Happened("said", None, said(message)) for message in messages]),
        )

    def add_once(self) -> None:
        place, held = self.one()
        key, content = self.rng.choice(KEYS), self.rng.choice(WORDS[:2])
        self.act(
            f"add_message({content!r}, once={key!r})",
            lambda world: world.held[place].add_message(Message.user(content), once=key),
            lambda: held.told.tell(Happened("said", None, said(Message.user(content))), once=(key, content)),
        )

    def clear(self) -> None:
        place, held = self.one()

        def expected() -> None:
            held.told.tell(Happened("cleared"))
            held.temp.clear()

        self.act("clear()", lambda world: world.held[place].clear(), expected)

    def rewind(self) -> None:
        place, held = self.one()
        to = self.rng.randint(0, held.told.head + 1)

        def expected() -> None:
            if held.told.deleted:
                raise Refused(GONE)
            held.told.tell(Happened("rewound", None, {"to": held.told.settled(to)}))

        self.act(f"rewind({to})", lambda world: world.held[place].rewind(to=to), expected)

    # -- state, facts and fields -----------------------------------------------------------------------------------

    def set_state(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, scope, value = rng.choice(STATE), rng.choice(SCOPES), self.value()

        def expected() -> None:
            if scope == "session":
                held.told.tell(Happened("set", None, {"name": name, "value": value}))
            else:
                self._scope(held, scope)[name] = value

        self.act(
            f"set_state({name!r}, {value!r}, {scope!r})",
            lambda world: world.held[place].set_state(name, value, scope=scope),
            expected,
        )

    def update_state(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, scope = rng.choice(STATE), rng.choice(SCOPES)

        def change(old: Any) -> Any:
            return old + 1 if type(old) is int and old < 1000 else 1

        def expected() -> Any:
            if scope == "session":
                value = change(held.told.now.state.get(name))
                held.told.tell(Happened("set", None, {"name": name, "value": value}))
            else:
                values = self._scope(held, scope)
                values[name] = value = change(values.get(name))
            return value

        self.act(
            f"update_state({name!r}, {scope!r})",
            lambda world: world.held[place].update_state(name, change, scope=scope),
            expected,
        )

    def delete_state(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, scope = rng.choice(STATE), rng.choice(SCOPES)

        def expected() -> bool:
            if scope != "session":
                return self._scope(held, scope).pop(name, ANY) is not ANY
            found = name in held.told.now.state
            if found:
                held.told.tell(Happened("unset", None, {"name": name}))
            return found

        self.act(
            f"delete_state({name!r}, {scope!r})",
            lambda world: world.held[place].delete_state(name, scope=scope),
            None if held.told.deleted and scope == "session" else expected,
        )

    def add_fact(self) -> None:
        (place, held), rng = self.one(), self.rng
        text, kind, ref = self.text() or "some fact", rng.choice(("fact", "decision")), rng.choice((None, "r"))
        raw = self.act(
            "facts.add()",
            lambda world: world.held[place].facts.add(text, kind=kind, ref=ref),
            lambda: (held.told.tell(Happened("noted", None, {"id": "", "fact": None})) and ANY) or ANY,
        )
        if raw:
            held.told.points.pop()  # the event above stood for this one, whose id is known only now
            fact = {"id": raw[0].id, "text": text, "kind": kind} | ({} if ref is None else {"ref": ref})
            held.told.tell(Happened("noted", None, {"id": raw[0].id, "fact": fact}))

    def change_fact(self) -> None:
        (place, held), rng = self.one(), self.rng
        known = [*held.told.now.facts, "nobody"]
        id, removes = rng.choice(known), rng.random() < 0.4
        if held.told.deleted:
            self.act("facts.get()", lambda world: world.held[place].facts.get(id))
            return

        def expected() -> Any:
            if id not in held.told.now.facts:
                raise Refused("invalid_argument")
            fact = None if removes else {**held.told.now.facts[id], "status": "done"}
            held.told.tell(Happened("noted", None, {"id": id, "fact": fact}))
            return ANY

        def act(world: World) -> Any:
            facts = world.held[place].facts
            return facts.remove(id) if removes else facts.update(id, status="done")

        self.act(f"facts.{'remove' if removes else 'update'}({id!r})", act, expected)

    def set_field(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, value = rng.choice((("title", "Ü"), ("title", None), ("metadata", {"m": [1]}), ("metadata", {})))
        self.act(
            f"{name} = {value!r}",
            lambda world: setattr(world.held[place], name, value),
            lambda: held.told.tell(Happened("changed", None, {name: value})) and None,
        )

    def move(self) -> None:
        place, held = self.one()
        move = self.rng.choice(tuple(MOVES))

        def expected() -> None:
            status = held.told.now.status
            if held.told.deleted:
                raise Refused(GONE)
            is_done = (move == "close" and status == "closed") or (move == "resume" and status in ("open", "active"))
            if not is_done:
                held.told.tell(Happened(MOVES[move]))
            if move == "close":
                held.temp.clear()

        def act(world: World) -> Any:
            session = world.held[place]
            if move == "resume" and held.told.now.turn is not None:  # would go on to finish the turn with a model
                moves = session.status in ("paused", "closed", "archived")
                return session._change_status("session.resumed", None, None) if moves else None
            return getattr(session, move)()

        self.act(f"{move}()", act, expected)

    # -- taking out and in -------------------------------------------------------------------------------------------

    def export(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, form = rng.choice(self.names), rng.choice(("jsonl", "jsonl", "markdown", "html"))
        raw = self.act(f"export({form})", lambda world: world.held[place].export(form))
        if not raw or form != "jsonl" or held.told.deleted:
            return
        made: list[Told] = []
        raw = self.act(
            f"import_({name!r})",
            lambda world: Session.import_(raw[0], session_id=name, store=world.store),
            lambda: made.append(self.shelf.put(name, held.told.imported())) or ANY,
        )
        self.hold(raw, made[0] if made else None)

    def save(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, change = rng.choice(self.names), rng.choice((None, "message", "state", "title"))
        keep = rng.random() < 0.5
        if held.told.deleted:
            self.act("to_dict()", lambda world: world.held[place].to_dict())
            return

        def act(world: World) -> Session | None:
            document = json.loads(json.dumps(world.held[place].to_dict())) | {"id": name}
            if change == "message":
                document["messages"] = document["messages"][:-1]
            elif change == "state":
                document["state"]["saved"] = 1
            elif change == "title":
                document["title"] = "saved"
            if keep:
                return Session.from_dict(document, store=world.store)
            world.store.save(name, document)
            return None

        made: list[Told] = []
        raw = self.act(
            f"save({name!r}, {change})", act, lambda: made.append(self._saved(name, held.told, change)) or ANY
        )
        self.hold(raw if keep else [], made[0] if made else None)

    def _saved(self, name: str, source: Told, change: str | None) -> Told:
        now = source.now
        visible, state, named = list(now.visible), dict(sorted(now.state.items())), _named(now)
        if change == "message":
            visible = visible[:-1]
        elif change == "state":
            state["saved"] = 1
        elif change == "title":
            named["title"] = "saved"
        messages = [Happened("said", None, {"role": s.role, "text": s.text, "content": s.content}) for s in visible]
        told = self.shelf.names.get(name)
        if told is None:
            told = self.shelf.put(name, Told(source.user_id, source.app_name))
            told.tell(Happened("changed", None, named))
            told.tell(*[Happened("set", None, {"name": key, "value": value}) for key, value in state.items()])
            told.tell(*[Happened("noted", None, {"id": id, "fact": fact}) for id, fact in now.facts.items()])
            told.tell(*messages)
            if now.status in ("paused", "closed", "archived"):
                told.tell(Happened(now.status))
            return told
        contents = [s.content for s in told.now.visible], dict(told.now.state), _named(told.now), dict(told.now.facts)
        if contents == ([s.content for s in visible], state, named, dict(now.facts)):
            return told
        old = told.now.facts
        gone = [Happened("noted", None, {"id": id, "fact": None}) for id in old if id not in now.facts]
        new = [
            Happened("noted", None, {"id": id, "fact": fact}) for id, fact in now.facts.items() if old.get(id) != fact
        ]
        emptied: dict[str, Any] = {} if told.now.fields.get("metadata") is None else {"metadata": {}}
        restored = Happened("restored", None, {"state": state, "fields": emptied | named})
        told.tell(restored, *gone, *new, *messages)
        return told


def _named(point: Point) -> dict[str, Any]:
    """What a document says of the fields: those that have a value."""
    found = {name: value for name, value in point.fields.items() if value is not None}
    return {name: value for name, value in found.items() if name != "metadata" or value}
