"""Random operations that only read: each result is compared with the model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast import Session
from tests.properties.expected_sessions import Refused
from tests.properties.store_comparison import (
    NOT_FOUND,
    STATE_NAMES,
    WORDS,
    StoreComparison,
    StoreSide,
    list_expected_messages,
    list_messages,
)

SCOPES = ("session", "user", "app", "temp")


class ReadOperations(StoreComparison):
    """Reading fields, state, events and lists of sessions."""

    def read_field(self) -> None:
        """Ask a session something that the model knows the answer to."""
        (place, model_session), rng = self.choose_session(), self.rng
        model_log, now = model_session.log, model_session.log.latest
        visible = now.visible
        limit, role = rng.choice((0, 1, 3, 100)), rng.choice((None, None, "user", "tool"))
        wanted, seq = rng.sample(WORDS, k=rng.randint(1, 2)), rng.randint(0, model_log.head + 1)
        of_role = [s for s in visible if role in (None, s.role)]
        hits = [s for s in visible if set(wanted) <= set(s.text.split())]
        last_of_role = list_expected_messages(of_role[-limit:] if limit else [])
        last_hits = list_expected_messages(hits[-limit:] if limit else [])
        questions: tuple[tuple[str, Callable[[Session], Any], Any], ...] = (
            ("messages", lambda s: list_messages(s.messages), list_expected_messages(visible)),
            ("len", len, len(visible)),
            ("history", lambda s: list_messages(s.history(limit, role)), last_of_role),
            ("search", lambda s: list_messages(s.search(" ".join(wanted), limit)), last_hits),
            ("status", lambda s: s.status, now.status),
            ("head", lambda s: s.head, model_log.head),
            ("title", lambda s: s.title, now.fields.get("title")),
            ("metadata", lambda s: s.metadata, now.fields.get("metadata") or {}),
            ("verify", lambda s: (bool(s.verify()), s.verify().checked), (True, model_log.head)),
            ("usage", lambda s: s.to_dict()["usage"], dict(now.usage)),
            ("state", lambda s: s.state, dict(now.state)),
            ("state_at", lambda s: s.state_at(seq), dict(model_log.points[min(seq, model_log.head)].state)),
            ("facts", lambda s: {f.id: f.text for f in s.facts.all()}, {id: f["text"] for id, f in now.facts.items()}),
            ("system", lambda s: s.system, now.fields.get("system")),
            ("parent", lambda s: s.parent, self.tenant.name_of(model_log.parent)),
            ("forks", lambda s: [fork.id for fork in s.forks()], self.tenant.forks_of(model_log)),
        )  # fmt: skip
        name, ask, answer = rng.choice(questions)
        expected: Callable[[], Any] | None = lambda: answer  # noqa: E731
        if (
            model_log.deleted
        ):  # what needs no head is read from what is left, if anything is: only the stores must agree
            expected = None
        self.compare(f"{name} of {self.tenant.name_of(model_log)!r}", lambda side: ask(side.sessions[place]), expected)

    def read_state(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        name, scope = rng.choice(STATE_NAMES), rng.choice(SCOPES)

        def expected() -> Any:
            values = model_session.log.latest.state if scope == "session" else self._find_scope(model_session, scope)
            return values.get(name, "default")

        self.compare(
            f"get_state({name!r}, {scope!r})",
            lambda side: side.sessions[place].get_state(name, scope=scope, default="default"),
            None if model_session.log.deleted and scope == "session" else expected,
        )

    def read_events(self) -> None:
        (place, model_session), rng = self.choose_session(), self.rng
        asked: dict[str, Any] = {"limit": rng.choice((None, 0, 2, 50))}
        if rng.random() < 0.5:
            asked["after"] = rng.randint(0, model_session.log.head + 1)
        if rng.random() < 0.5:
            asked["types"] = rng.choice(("message.added", ["state.set", "turn.started"]))
        if rng.random() < 0.3:
            start = self.sides[0].store.clock.now()
            for side in self.sides[1:]:
                side.store.clock.now()
            asked["since"] = datetime.fromtimestamp((start - rng.randint(0, 200_000)) / 1e6, UTC)
        self.compare(f"events({asked})", lambda side: side.sessions[place].events(**asked))

    def read_list(self) -> None:
        rng, shelf = self.rng, self.tenant
        asked: dict[str, Any] = {
            "user_id": rng.choice((None, None, "u1")),
            "app_name": rng.choice((None, None, "ü/2")),
            "status": rng.choice((None, None, "open", "closed")),
            "limit": rng.choice((0, 1, 2, 50)),
            "after": rng.choice((None, None, *self.names)),
        }

        def expected() -> list[str]:
            names = shelf.live_names[::-1]
            if asked["after"] is not None:
                if asked["after"] not in names:
                    raise Refused("invalid_argument")
                names = names[names.index(asked["after"]) + 1 :]
            found = []
            for name in names:
                model_log = shelf.names[name]
                mine = {"user_id": model_log.user_id, "app_name": model_log.app_name, "status": model_log.latest.status}
                if all(asked[key] in (None, value) for key, value in mine.items()):
                    found.append(name)
            return found[: asked["limit"]]

        self.compare(f"list({asked})", lambda side: [s.id for s in Session.list(store=side.store, **asked)], expected)

    def compare_two(self) -> None:
        (place, model_session), (other, second) = self.choose_session(), self.choose_session()

        def expected() -> list[int]:
            if model_session.log.deleted or second.log.deleted:
                raise Refused(NOT_FOUND)
            mine, theirs = model_session.log.latest.visible, second.log.latest.visible
            common = 0
            while common < min(len(mine), len(theirs)) and (
                (mine[common].seq, mine[common].content) == (theirs[common].seq, theirs[common].content)
            ):
                common += 1
            return [common, len(mine) - common, len(theirs) - common]

        def act(side: StoreSide) -> list[int]:
            found = side.sessions[place].compare(side.sessions[other])
            return [len(found.common), len(found.mine), len(found.theirs)]

        self.compare("compare()", act, expected)

    def pass_bad_arguments(self) -> None:
        """Bad input raises the named error, and stores nothing."""
        place, model_session = self.choose_session()
        what, act = self.rng.choice(BAD_ARGUMENTS)
        self.compare(
            f"nonsense: {what}",
            lambda side: act(side.sessions[place]),
            None if model_session.log.deleted else _expect_refusal,
        )
        if not model_session.log.deleted:
            self.compare("head", lambda side: side.sessions[place].head, lambda: model_session.log.head)


def _expect_refusal() -> Any:
    raise Refused("invalid_argument")


BAD_ARGUMENTS: tuple[tuple[str, Callable[[Session], Any]], ...] = (
    ("negative limit", lambda s: s.history(limit=-1)),
    ("limit of another type", lambda s: s.events(limit="3")),  # type: ignore[arg-type]
    ("unknown role", lambda s: s.history(role="robot")),
    ("unknown scope", lambda s: s.set_state("a", 1, scope="galaxy")),
    ("no list", lambda s: s.add_messages("text")),  # type: ignore[arg-type]
    ("no message", lambda s: s.add_message(5)),  # type: ignore[arg-type]
    ("unknown format", lambda s: s.export(format="pdf")),
    ("no date", lambda s: s.events(since="soon")),
    ("negative number", lambda s: s.state_at(-1)),
    ("no function", lambda s: s.update_state("a", 1)),  # type: ignore[arg-type]
    ("empty fact", lambda s: s.facts.add("")),
    ("unknown kind", lambda s: s.facts.add("x", kind="rumour")),
    ("no session", lambda s: s.compare("other")),  # type: ignore[arg-type]
    ("no export", lambda s: Session.import_("{}", store=s.store)),
)
