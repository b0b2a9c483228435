"""Bugs in imports and the sweep."""

from __future__ import annotations

from tests.proofs.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
