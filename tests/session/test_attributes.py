"""Attributes of a session: one that is unknown is refused, and none is lost in silence."""

from __future__ import annotations

import pytest

from holdfast import Session, aio
from holdfast.stores import MemoryStore


@pytest.mark.parametrize("cls", [Session, aio.Session])
def test_an_unknown_attribute_cannot_be_set(cls: type[Session]) -> None:
    session = cls(store=MemoryStore())
    with pytest.raises(AttributeError, match="did you mean 'system'"):
        session.sytem = "x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="title, system, metadata"):
        session.anything = 1  # type: ignore[attr-defined]


def test_the_known_ones_can() -> None:
    session = Session(store=MemoryStore())
    session.system, session.title, session.work_dir = "Be brief.", "Refund", "/tmp"  # type: ignore[assignment]
    session.budget = {"steps": 3}  # type: ignore[assignment]
    assert (session.system, session.title, str(session.work_dir)) == ("Be brief.", "Refund", "/tmp")
    assert session.budget is not None
    assert session.budget.steps == 3
    session.system = session.work_dir = session.budget = None
    assert (session.system, session.work_dir, session.budget) == (None, None, None)


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    class Ticket(Session):
        number: int = 0

    ticket = Ticket(store=MemoryStore())
    ticket.number = 7
    assert ticket.number == 7
