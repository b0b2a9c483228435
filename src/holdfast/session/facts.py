"""Facts: short durable notes of a session. Pruning, clearing and rewinding the messages does not change them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import twin
from holdfast.errors import InvalidArgument
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name
from holdfast.stores.documents import FACT_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.base import Log, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact: something that a successor session must know."""

    id: str
    text: str
    kind: str = "fact"  # one of FACT_KINDS
    status: str | None = None  # free text; "done", "closed" and "cancelled" end a feature or a progress
    ref: str | None = None  # where to find more, such as a path or a URL


class Facts:
    """The facts of one session: `session.facts.add("use PostgreSQL", kind="decision")`."""

    def __init__(self, store: Store, log: Log, *, turn: Callable[[], int] | None = None) -> None:
        self._store, self._log = store, log
        self._turn_epoch = turn  # for a tool: returns the epoch of its turn, or raises if the turn is over

    def in_turn(self, epoch: Callable[[], int]) -> Facts:
        """The same facts, for a tool: its writes belong to its turn and are refused when the turn is over."""
        return Facts(self._store, self._log, turn=epoch)

    def _append(self, draft: Draft) -> None:
        self._store.append(self._log, [draft], epoch=None if self._turn_epoch is None else self._turn_epoch())

    def add(self, text: str, kind: str = "fact", *, status: str | None = None, ref: str | None = None) -> Fact:
        """Record a new fact and return it. Raises InvalidArgument for an empty text or an unknown kind."""
        fact = _check_fact(Fact(id=self._store.clock.new_id(), text=text, kind=kind, status=status, ref=ref))
        self._append(Draft(type="fact.added", data=_fact_data(fact)))
        return fact

    def all(self) -> list[Fact]:
        """Return every fact, in the order in which they were added."""
        return [Fact(**data) for data in self._store.values(self._log, "fact/").values()]

    def get(self, id: str) -> Fact:
        """Return one fact. Raises InvalidArgument if the session has no fact with this id."""
        data = self._store.value(self._log, f"fact/{check_name(id, 'the id of a fact')}")
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
        """Change the given fields of a fact, keep the others, and return the changed fact."""
        changes = {"text": text, "kind": kind, "status": status, "ref": ref}
        known = asdict(self.get(id))
        fact = _check_fact(Fact(**(known | {name: value for name, value in changes.items() if value is not None})))
        self._append(Draft(type="fact.updated", data=_fact_data(fact)))
        return fact

    def remove(self, id: str) -> None:
        """Remove a fact. Raises InvalidArgument if the session has no fact with this id."""
        self.get(id)
        self._append(Draft(type="fact.removed", data={"id": id}))

    add_async = twin(add)
    all_async = twin(all)
    get_async = twin(get)
    update_async = twin(update)
    remove_async = twin(remove)

    def __len__(self) -> int:
        return len(self.all())

    def __bool__(self) -> bool:
        return True  # also without facts: `if session.facts` must not depend on their number


def _fact_data(fact: Fact) -> dict[str, Any]:
    return {name: value for name, value in asdict(fact).items() if value is not None}


def _check_fact(fact: Fact) -> Fact:
    if not isinstance(fact.text, str) or not fact.text:
        raise InvalidArgument("a fact is a non-empty string")
    if fact.kind not in FACT_KINDS:
        raise InvalidArgument(f"unknown kind {fact.kind!r} of fact: use one of {', '.join(FACT_KINDS)}")
    for name in ("status", "ref"):
        if not isinstance(getattr(fact, name), str | None):
            raise InvalidArgument(f"{name}= of a fact must be a string")
    return fact
