"""The moves of the game that only look: whatever was written, this is what it must look like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast import Session
from tests.properties.model import Refused
from tests.properties.table import GONE, STATE, WORDS, Table, World, as_heard, heard

SCOPES = ("session", "user", "app", "temp")


class Questions(Table):
    """Asking sessions and stores what the model knows the answer to."""

    def look(self) -> None:
        """Ask a session something that the model knows the answer to."""
        (place, held), rng = self.one(), self.rng
        told, now = held.told, held.told.now
        visible = now.visible
        limit, role = rng.choice((0, 1, 3, 100)), rng.choice((None, None, "user", "tool"))
        wanted, seq = rng.sample(WORDS, k=rng.randint(1, 2)), rng.randint(0, told.head + 1)
        of_role = [s for s in visible if role in (None, s.role)]
        hits = [s for s in visible if set(wanted) <= set(s.text.split())]
        questions: tuple[tuple[str, Callable[[Session], Any], Any], ...] = (
            ("messages", lambda s: heard(s.messages), as_heard(visible)),
            ("len", len, len(visible)),
            ("history", lambda s: heard(s.history(limit, role)), as_heard(of_role[-limit:] if limit else [])),
            ("search", lambda s: heard(s.search(" ".join(wanted), limit)), as_heard(hits[-limit:] if limit else [])),
            ("status", lambda s: s.status, now.status),
            ("head", lambda s: s.head, told.head),
            ("title", lambda s: s.title, now.fields.get("title")),
            ("metadata", lambda s: s.metadata, now.fields.get("metadata") or {}),
            ("verify", lambda s: (bool(s.verify()), s.verify().checked), (True, told.head)),
            ("usage", lambda s: s.to_dict()["usage"], dict(now.usage)),
            ("state", lambda s: s.state, dict(now.state)),
            ("state_at", lambda s: s.state_at(seq), dict(told.points[min(seq, told.head)].state)),
            ("facts", lambda s: {f.id: f.text for f in s.facts.all()}, {id: f["text"] for id, f in now.facts.items()}),
            ("system", lambda s: s.system, now.fields.get("system")),
            ("parent", lambda s: s.parent, self.shelf.name_of(told.parent)),
            ("forks", lambda s: [fork.id for fork in s.forks()], self.shelf.forks_of(told)),
        )  # fmt: skip
        name, ask, answer = rng.choice(questions)
        expected: Callable[[], Any] | None = lambda: answer  # noqa: E731
        if told.deleted:  # what needs no head is read from what is left, if anything is: only the stores must agree
            expected = None
        self.act(f"{name} of {self.shelf.name_of(told)!r}", lambda world: ask(world.held[place]), expected)

    def look_at_state(self) -> None:
        (place, held), rng = self.one(), self.rng
        name, scope = rng.choice(STATE), rng.choice(SCOPES)

        def expected() -> Any:
            values = held.told.now.state if scope == "session" else self._scope(held, scope)
            return values.get(name, "default")

        self.act(
            f"get_state({name!r}, {scope!r})",
            lambda world: world.held[place].get_state(name, scope=scope, default="default"),
            None if held.told.deleted and scope == "session" else expected,
        )

    def look_at_events(self) -> None:
        (place, held), rng = self.one(), self.rng
        asked: dict[str, Any] = {"limit": rng.choice((None, 0, 2, 50))}
        if rng.random() < 0.5:
            asked["after"] = rng.randint(0, held.told.head + 1)
        if rng.random() < 0.5:
            asked["types"] = rng.choice(("message.added", ["state.set", "turn.started"]))
        if rng.random() < 0.3:
            start = self.worlds[0].store.clock.now()
            for world in self.worlds[1:]:
                world.store.clock.now()
            asked["since"] = datetime.fromtimestamp((start - rng.randint(0, 200_000)) / 1e6, UTC)
        self.act(f"events({asked})", lambda world: world.held[place].events(**asked))

    def look_at_list(self) -> None:
        rng, shelf = self.rng, self.shelf
        asked: dict[str, Any] = {
            "user_id": rng.choice((None, None, "u1")),
            "app_name": rng.choice((None, None, "ü/2")),
            "status": rng.choice((None, None, "open", "closed")),
            "limit": rng.choice((0, 1, 2, 50)),
            "after": rng.choice((None, None, *self.names)),
        }

        def expected() -> list[str]:
            names = shelf.made[::-1]
            if asked["after"] is not None:
                if asked["after"] not in names:
                    raise Refused("invalid_argument")
                names = names[names.index(asked["after"]) + 1 :]
            found = []
            for name in names:
                told = shelf.names[name]
                mine = {"user_id": told.user_id, "app_name": told.app_name, "status": told.now.status}
                if all(asked[key] in (None, value) for key, value in mine.items()):
                    found.append(name)
            return found[: asked["limit"]]

        self.act(f"list({asked})", lambda world: [s.id for s in Session.list(store=world.store, **asked)], expected)

    def look_at_two(self) -> None:
        (place, held), (other, second) = self.one(), self.one()

        def expected() -> list[int]:
            if held.told.deleted or second.told.deleted:
                raise Refused(GONE)
            mine, theirs = held.told.now.visible, second.told.now.visible
            common = 0
            while common < min(len(mine), len(theirs)) and (
                (mine[common].seq, mine[common].content) == (theirs[common].seq, theirs[common].content)
            ):
                common += 1
            return [common, len(mine) - common, len(theirs) - common]

        def act(world: World) -> list[int]:
            found = world.held[place].compare(world.held[other])
            return [len(found.common), len(found.mine), len(found.theirs)]

        self.act("compare()", act, expected)

    def ask_nonsense(self) -> None:
        """Bad input raises the named error, and stores nothing."""
        place, held = self.one()
        what, act = self.rng.choice(NONSENSE)
        self.act(f"nonsense: {what}", lambda world: act(world.held[place]), None if held.told.deleted else _nonsense)
        if not held.told.deleted:
            self.act("head", lambda world: world.held[place].head, lambda: held.told.head)


def _nonsense() -> Any:
    raise Refused("invalid_argument")


NONSENSE: tuple[tuple[str, Callable[[Session], Any]], ...] = (
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
