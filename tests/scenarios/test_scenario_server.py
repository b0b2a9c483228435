"""The list of what does not run over HTTP names what there is, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.scenarios.scenario_server import NOT_OVER_HTTP


def test_every_scenario_that_is_left_out_exists_and_is_left_out_for_one_reason() -> None:
    scenarios = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    left_out = [name for names in NOT_OVER_HTTP.values() for name in names]
    assert {name.partition("[")[0] for name in left_out} <= scenarios
    assert len(left_out) == len(set(left_out))
