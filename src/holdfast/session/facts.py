"""Facts: the small durable tier of a session, which survives every change of the view."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_name
from holdfast.stores.documents import FACT_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.base import Log, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a successor must know."""

    id: str
    text: str
    kind: str = "fact"
    status: str | None = None
    ref: str | None = None


class Facts:
    """The facts of one session: `session.facts.add("use PostgreSQL", kind="decision")`."""

    def __init__(self, store: Store, log: Log, *, turn: Callable[[], int] | None = None) -> None:
        self._store, self._log = store, log
        self._turn = turn  # gives the epoch of the turn that a tool's writes belong to, or raises if that is over

    def _append(self, draft: Draft) -> None:
        self._store.append(self._log, [draft], epoch=None if self._turn is None else self._turn())

    def add(self, text: str, kind: str = "fact", *, status: str | None = None, ref: str | None = None) -> Fact:
        fact = _checked(Fact(id=self._store.ids.new(), text=text, kind=kind, status=status, ref=ref))
        self._append(Draft(type="fact.added", data=_data(fact)))
        return fact

    def all(self) -> list[Fact]:
        """Every fact, in the order in which they were added."""
        return [Fact(**data) for data in self._store.values(self._log, "fact/").values()]

    def get(self, id: str) -> Fact:
        data = self._store.value(self._log, f"fact/{checked_name(id, 'the id of a fact')}")
        if data is None:
            raise InvalidArgument(f"there is no fact {id!r} in this session: facts.all() lists them")
        return Fact(**data)

    def update(
        self,
        id: str,
        *,
        text: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        ref: str | None = None,
    ) -> Fact:
        """Change what is given, keep the rest."""
        changes = {"text": text, "kind": kind, "status": status, "ref": ref}
        known = asdict(self.get(id))
        fact = _checked(Fact(**(known | {name: value for name, value in changes.items() if value is not None})))
        self._append(Draft(type="fact.updated", data=_data(fact)))
        return fact

    def remove(self, id: str) -> None:
        self.get(id)
        self._append(Draft(type="fact.removed", data={"id": id}))

    def __len__(self) -> int:
        return len(self.all())

    def __bool__(self) -> bool:
        return True


def _data(fact: Fact) -> dict[str, Any]:
    return {name: value for name, value in asdict(fact).items() if value is not None}


def _checked(fact: Fact) -> Fact:
    if not isinstance(fact.text, str) or not fact.text:
        raise InvalidArgument("a fact is a non-empty string")
    if fact.kind not in FACT_KINDS:
        raise InvalidArgument(f"unknown kind {fact.kind!r} of fact: use one of {', '.join(FACT_KINDS)}")
    for name in ("status", "ref"):
        if not isinstance(getattr(fact, name), str | None):
            raise InvalidArgument(f"{name}= of a fact must be a string")
    return fact
