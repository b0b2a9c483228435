"""Bugs in redaction and erasure."""

from __future__ import annotations

from tests.proofs.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
