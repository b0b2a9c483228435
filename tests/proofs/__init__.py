"""Proofs of the bar in docs/reliability.md: each a function of a size and a seed that counts what was lost.

`pytest -m proof` runs them (see test_proofs.py) and prints one line of figures for each. A proof that finds nothing
when there is something to find is worse than none, so most of them come with a control, and the mutants break the code
on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a proof counted, and what it found wrong: nothing is a pass."""

    figures: str
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A registered proof."""

    name: str
    number: str  # in the bar: B1 to B25; F for what the bar does not number
    sizes: dict[str, int]
    run: Callable[[int, int], Report]


PROOFS: dict[str, Proof] = {}

Run = Callable[[int, int], Report]


def proof(number: str, *, ci: int, long: int) -> Callable[[Run], Run]:
    """Register a function `(size, seed) -> Report` under its name, with its size for each run."""

    def register(run: Run) -> Run:
        name = run.__name__
        PROOFS[name] = Proof(name=name, number=number, sizes={"ci": ci, "long": long}, run=run)
        return run

    return register
