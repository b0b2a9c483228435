"""Bugs in quotas."""

from __future__ import annotations

from tests.proofs.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
