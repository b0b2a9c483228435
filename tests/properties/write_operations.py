"""Random operations that write: each with the result that the model expects."""

from __future__ import annotations

import json
from typing import Any

from holdfast import Message, Session
from tests.properties.expected_sessions import ExpectedEvent, ExpectedLog, Refused, SessionPoint
from tests.properties.store_comparison import (
    ANY,
    KEYS,
    NAMES,
    NOT_FOUND,
    STATE_NAMES,
    WORDS,
    StoreComparison,
    StoreSide,
    describe_message,
)

SCOPES = ("session", "session", "user", "app", "temp")
STATUS_EVENTS = {
    "pause": "paused",
    "resume": "resumed",
    "close": "closed",
    "archive": "archived",
    "reopen": "reopened",
}
FIELDS = ("title", "system", "metadata")


class WriteOperations(StoreComparison):
    """Opening, saying, setting, forking, taking turns, taking out and in, deleting."""

    # -- opening, forking, deleting ----------------------------------------------------------------------------------

    def open(self) -> None:
        name, options = self.rng.choice(self.names), self.draw_options()
        made: list[ExpectedLog] = []
        raw = self.compare(
            f"Session({name!r}, {options!r})",
            lambda side: Session(name, store=side.store, **options),
            lambda: made.append(self._expect_open(name, options)) or ANY,
        )
        self.keep_session(raw, made[0] if made else None)

    def _expect_open(self, name: str, options: dict[str, Any]) -> ExpectedLog:
        model_log = self.tenant.names.get(name)
        changes: dict[str, Any] = {field: options[field] for field in FIELDS if field in options}
        first = [
            ExpectedEvent("set", None, {"name": key, "value": one}) for key, one in options.get("state", {}).items()
        ]
        first += [ExpectedEvent("message", None, describe_message(message)) for message in options.get("messages", ())]
        if model_log is None:
            model_log = self.tenant.add_log(name, ExpectedLog(options.get("user_id"), options.get("app_name")))
            model_log.append(ExpectedEvent("changed", None, changes), *first)
            return model_log
        for owner in ("user_id", "app_name"):
            if options.get(owner) not in (None, getattr(model_log, owner)):
                raise Refused("session_mismatch")
        if first:
            if model_log.latest.visible or model_log.latest.state:
                raise Refused("invalid_argument")
            model_log.append(*first)
        changes = {field: value for field, value in changes.items() if model_log.latest.fields.get(field) != value}
        if changes:
            model_log.append(ExpectedEvent("changed", None, changes))
        return model_log

    def reopen_by_name(self) -> None:
        name = self.rng.choice((*self.names, "nobody"))
        raw = self.compare(
            f"open({name!r})", lambda side: Session.open(name, store=side.store), lambda: self._expect_session(name)
        )
        self.keep_session(raw, self.tenant.names.get(name))

    def _expect_session(self, name: str) -> object:
        if name not in self.tenant.names:
            raise Refused(NOT_FOUND)
        return ANY

    def fork(self) -> None:
        place, model_session = self.choose_session()
        name = self.rng.choice((*self.names, *self.names, "bad/name"))
        at = self.rng.choice((None, self.rng.randint(-1, model_session.log.head + 1)))
        made: list[ExpectedLog] = []

        def expected() -> object:
            if "/" in name:
                raise Refused("invalid_id")
            if model_session.log.deleted:
                raise Refused(NOT_FOUND)
            made.append(
                self.tenant.add_log(
                    name,
                    model_session.log.make_fork(
                        model_session.log.find_settled_point(model_session.log.head if at is None else at)
                    ),
                )
            )
            return ANY

        raw = self.compare(f"fork({name!r}, {at})", lambda side: side.sessions[place].fork(name, at=at), expected)
        self.keep_session(raw, made[0] if made else None)

    def delete(self) -> None:
        name = self.rng.choice(NAMES)
        self.compare(f"delete({name!r})", lambda side: side.store.delete(name), lambda: self.tenant.delete(name))

    # -- messages --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        place, model_session = self.choose_session()
        messages, once = [self.draw_message() for _ in range(self.rng.randint(1, 3))], None
        self.compare(
            f"add_messages({len(messages)})",
            lambda side: side.sessions[place].add_messages(messages, once=once),
            lambda: model_session.log.append(
                *[ExpectedEvent("message", None, describe_message(message)) for message in messages]
            ),
        )

    def add_once(self) -> None:
        place, model_session = self.choose_session()
        key, content = self.rng.choice(KEYS), self.rng.choice(WORDS[:2])
        self.compare(
            f"add_message({content!r}, once={key!r})",
            lambda side: side.sessions[place].add_message(Message.user(content), once=key),
            lambda: model_session.log.append(
                ExpectedEvent("message", None, describe_message(Message.user(content))), once=(key, content)
            ),
        )

    def clear(self) -> None:
        place, model_session = self.choose_session()

        def expected() -> None:
            model_session.log.append(ExpectedEvent("cleared"))
            model_session.temp.clear()

        self.compare("clear()", lambda side: side.sessions[place].clear(), expected)

    def rewind(self) -> None:
        place, model_session = self.choose_session()
        to = self.rng.randint(0, model_session.log.head + 1)

        def expected() -> None:
            if model_session.log.deleted:
                raise Refused(NOT_FOUND)
            model_session.log.append(ExpectedEvent("rewound", None, {"to": model_session.log.find_settled_point(to)}))

        self.compare(f"rewind({to})", lambda side: side.sessions[place].rewind(to=to), expected)

    # -- state, facts and fields -----------------------------------------------------------------------------------

    def set_state(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, scope, value = rng.choice(STATE_NAMES), rng.choice(SCOPES), self.draw_value()

        def expected() -> None:
            if scope == "session":
                model_session.log.append(ExpectedEvent("set", None, {"name": name, "value": value}))
            else:
                self._find_scope(model_session, scope)[name] = value

        self.compare(
            f"set_state({name!r}, {value!r}, {scope!r})",
            lambda side: side.sessions[place].set_state(name, value, scope=scope),
            expected,
        )

    def update_state(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, scope = rng.choice(STATE_NAMES), rng.choice(SCOPES)

        def change(old: Any) -> Any:
            return old + 1 if type(old) is int and old < 1000 else 1

        def expected() -> Any:
            if scope == "session":
                value = change(model_session.log.latest.state.get(name))
                model_session.log.append(ExpectedEvent("set", None, {"name": name, "value": value}))
            else:
                values = self._find_scope(model_session, scope)
                values[name] = value = change(values.get(name))
            return value

        self.compare(
            f"update_state({name!r}, {scope!r})",
            lambda side: side.sessions[place].update_state(name, change, scope=scope),
            expected,
        )

    def delete_state(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, scope = rng.choice(STATE_NAMES), rng.choice(SCOPES)

        def expected() -> bool:
            if scope != "session":
                return self._find_scope(model_session, scope).pop(name, ANY) is not ANY
            found = name in model_session.log.latest.state
            if found:
                model_session.log.append(ExpectedEvent("unset", None, {"name": name}))
            return found

        self.compare(
            f"delete_state({name!r}, {scope!r})",
            lambda side: side.sessions[place].delete_state(name, scope=scope),
            None if model_session.log.deleted and scope == "session" else expected,
        )

    def add_fact(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        text, kind, ref = self.text() or "some fact", rng.choice(("fact", "decision")), rng.choice((None, "r"))
        raw = self.compare(
            "facts.add()",
            lambda side: side.sessions[place].facts.add(text, kind=kind, ref=ref),
            lambda: (model_session.log.append(ExpectedEvent("noted", None, {"id": "", "fact": None})) and ANY) or ANY,
        )
        if raw:
            model_session.log.points.pop()  # the event above stood for this one, whose id is known only now
            fact = {"id": raw[0].id, "text": text, "kind": kind} | ({} if ref is None else {"ref": ref})
            model_session.log.append(ExpectedEvent("noted", None, {"id": raw[0].id, "fact": fact}))

    def change_fact(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        known = [*model_session.log.latest.facts, "nobody"]
        id, removes = rng.choice(known), rng.random() < 0.4
        if model_session.log.deleted:
            self.compare("facts.get()", lambda side: side.sessions[place].facts.get(id))
            return

        def expected() -> Any:
            if id not in model_session.log.latest.facts:
                raise Refused("invalid_argument")
            fact = None if removes else {**model_session.log.latest.facts[id], "status": "done"}
            model_session.log.append(ExpectedEvent("noted", None, {"id": id, "fact": fact}))
            return ANY

        def act(side: StoreSide) -> Any:
            facts = side.sessions[place].facts
            return facts.remove(id) if removes else facts.update(id, status="done")

        self.compare(f"facts.{'remove' if removes else 'update'}({id!r})", act, expected)

    def set_field(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, value = rng.choice((("title", "Ü"), ("title", None), ("metadata", {"m": [1]}), ("metadata", {})))
        self.compare(
            f"{name} = {value!r}",
            lambda side: setattr(side.sessions[place], name, value),
            lambda: model_session.log.append(ExpectedEvent("changed", None, {name: value})) and None,
        )

    def change_status(self) -> None:
        place, model_session = self.choose_session()
        move = self.rng.choice(tuple(STATUS_EVENTS))

        def expected() -> None:
            status = model_session.log.latest.status
            if model_session.log.deleted:
                raise Refused(NOT_FOUND)
            is_done = (move == "close" and status == "closed") or (move == "resume" and status in ("open", "active"))
            if not is_done:
                model_session.log.append(ExpectedEvent(STATUS_EVENTS[move]))
            if move == "close":
                model_session.temp.clear()

        def act(side: StoreSide) -> Any:
            session = side.sessions[place]
            if (
                move == "resume" and model_session.log.latest.turn is not None
            ):  # would go on to finish the turn with a model
                moves = session.status in ("paused", "closed", "archived")
                return session._change_status("session.resumed", None, None) if moves else None
            return getattr(session, move)()

        self.compare(f"{move}()", act, expected)

    # -- taking out and in -------------------------------------------------------------------------------------------

    def export(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, form = rng.choice(self.names), rng.choice(("jsonl", "jsonl", "markdown", "html"))
        raw = self.compare(f"export({form})", lambda side: side.sessions[place].export(form))
        if not raw or form != "jsonl" or model_session.log.deleted:
            return
        made: list[ExpectedLog] = []
        raw = self.compare(
            f"import_({name!r})",
            lambda side: Session.import_(raw[0], session_id=name, store=side.store),
            lambda: made.append(self.tenant.add_log(name, model_session.log.make_import())) or ANY,
        )
        self.keep_session(raw, made[0] if made else None)

    def save(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, change = rng.choice(self.names), rng.choice((None, "message", "state", "title"))
        keep = rng.random() < 0.5
        if model_session.log.deleted:
            self.compare("to_dict()", lambda side: side.sessions[place].to_dict())
            return

        # The model knows no times, no usage of saved documents and no turns in them: those fields are left out, as in a
        # document that was written by hand. tests/scenarios/test_whole_documents.py has the whole ones.
        left_out = {"created_at", "updated_at", "usage", "turns", "budget", "retention", "turn"}
        if name in self.tenant.names:
            left_out.add("status")

        def act(side: StoreSide) -> Session | None:
            whole = json.loads(json.dumps(side.sessions[place].to_dict()))
            document = {key: value for key, value in whole.items() if key not in left_out} | {"id": name}
            if change == "message":
                document["messages"] = document["messages"][:-1]
            elif change == "state":
                document["state"]["saved"] = 1
            elif change == "title":
                document["title"] = "saved"
            if keep:
                return Session.from_dict(document, store=side.store)
            side.store.save(name, document)
            return None

        made: list[ExpectedLog] = []
        raw = self.compare(
            f"save({name!r}, {change})",
            act,
            lambda: made.append(self._expect_save(name, model_session.log, change)) or ANY,
        )
        self.keep_session(raw if keep else [], made[0] if made else None)

    def _expect_save(self, name: str, source: ExpectedLog, change: str | None) -> ExpectedLog:
        now = source.latest
        visible, state, named = list(now.visible), dict(sorted(now.state.items())), _list_set_fields(now)
        if change == "message":
            visible = visible[:-1]
        elif change == "state":
            state["saved"] = 1
        elif change == "title":
            named["title"] = "saved"
        messages = [
            ExpectedEvent("message", None, {"role": s.role, "text": s.text, "content": s.content}) for s in visible
        ]
        model_log = self.tenant.names.get(name)
        if model_log is None:
            model_log = self.tenant.add_log(name, ExpectedLog(source.user_id, source.app_name))
            model_log.append(ExpectedEvent("changed", None, named))
            model_log.append(
                *[ExpectedEvent("set", None, {"name": key, "value": value}) for key, value in state.items()]
            )
            model_log.append(
                *[ExpectedEvent("noted", None, {"id": id, "fact": fact}) for id, fact in now.facts.items()]
            )
            model_log.append(*messages)
            if now.status in ("paused", "closed", "archived"):
                model_log.append(ExpectedEvent(now.status))
            return model_log
        contents = (
            [s.content for s in model_log.latest.visible],
            dict(model_log.latest.state),
            _list_set_fields(model_log.latest),
            dict(model_log.latest.facts),
        )
        if contents == ([s.content for s in visible], state, named, dict(now.facts)):
            return model_log
        old = model_log.latest.facts
        gone = [ExpectedEvent("noted", None, {"id": id, "fact": None}) for id in old if id not in now.facts]
        new = [
            ExpectedEvent("noted", None, {"id": id, "fact": fact})
            for id, fact in now.facts.items()
            if old.get(id) != fact
        ]
        emptied: dict[str, Any] = {} if model_log.latest.fields.get("metadata") is None else {"metadata": {}}
        restored = ExpectedEvent("restored", None, {"state": state, "fields": emptied | named})
        model_log.append(restored, *gone, *new, *messages)
        return model_log


def _list_set_fields(point: SessionPoint) -> dict[str, Any]:
    """What a document says of the fields: those that have a value."""
    found = {name: value for name, value in point.fields.items() if value is not None}
    return {name: value for name, value in found.items() if name != "metadata" or value}
