"""Bugs in signed heads and the walls inside the database."""

from __future__ import annotations

from tests.proofs.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
