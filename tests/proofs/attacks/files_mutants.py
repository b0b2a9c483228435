"""Bugs in files, backups and prompts."""

from __future__ import annotations

from tests.proofs.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
