"""Each mutant still fits the code. CI runs one of each detector; this finds others that the code has left."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.proofs.mutant import Mutant
from tests.proofs.mutant_process import apply_edits
from tests.proofs.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_mutant_finds_its_text_and_compiles(mutant: Mutant) -> None:
    for module in {edit.module for edit in mutant.edits}:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        old = Path(spec.origin).read_text()
        new = apply_edits(old, [edit for edit in mutant.edits if edit.module == module])
        assert new != old
        compile(new, spec.origin, "exec")


def test_no_two_mutants_have_one_name() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
