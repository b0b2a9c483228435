"""Every proof, every mutant and the control of the mutants as a test with the marker `proof`.

`pytest -m proof` runs them all, `-k kill_turns` or `-k B7` some of them, `-m "proof and B2"` those of one number
exactly; `--size long` runs them at their full size and `--seed` with other numbers. At CI size, without `-k`, there is
one mutant of every second detector, and other seeds have other detectors.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from zlib import crc32

import pytest

from tests.kit.postgres import PostgresServer
from tests.proofs import PROOFS, Proof
from tests.proofs.mutant import CONTROL, Mutant
from tests.proofs.mutant_process import run_detector
from tests.proofs.mutants import MUTANTS

# In this order: the long ones first, so that no core is left with one of them at the end.
MODULES = (
    "permissions",
    "raw_http",
    "api_schema",
    "server_fleet",
    "postgres_servers",
    "compliance",
    "imports",
    "removals",
    "turns",
    "flows",
    "simulation",
    "provider_chaos",
    "models",
    "audit",
    "storage",
    "crashes",
    "server_kills",
    "server_races",
    "server_streams",
    "server_crowds",
    "browsers",
    "leaks",
    "interrupts",
)
SHOWN = 5
for module in MODULES:
    importlib.import_module(f"tests.proofs.{module}")

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    """Silence two libraries that warn of each connection and request that a proof breaks on purpose."""
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


@pytest.fixture
def size(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--size"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed"))


def number(of: str) -> pytest.MarkDecorator:
    mark: pytest.MarkDecorator = getattr(pytest.mark, of)
    return mark


@pytest.mark.parametrize(
    "proof", [pytest.param(one, id=f"{one.number}-{one.name}", marks=number(one.number)) for one in PROOFS.values()]
)
def test_proof(proof: Proof, size: str, seed: int, record_property: Record) -> None:
    report = proof.run(proof.sizes[size], seed)
    record_property("proof", f"{proof.number:<4}{proof.name:<24}size={proof.sizes[size]} seed={seed}  {report.figures}")
    if report.failures:
        shown = [*report.failures[:SHOWN], f"({len(report.failures)} failures)"]
        again = f"again: pytest -m proof -k {proof.name} --size {size} --seed {seed}"
        pytest.fail("\n".join([*shown, again]), pytrace=False)


@number("B23")
def test_the_detector_is_silent_without_a_mutant(
    detector: str, seed: int, postgres_server: PostgresServer, record_property: Record
) -> None:
    record_property("control", detector)
    is_sound, complaints = run_detector(CONTROL, detector, seed, postgres_server.database())
    assert is_sound, complaints
    assert complaints == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the mutants, and the detectors for them."""
    option, mutants = metafunc.config.option, list(MUTANTS)
    detectors = sorted({one.detector for one in MUTANTS})
    if option.size == "ci" and not option.keyword:
        detectors = [each for each in detectors if crc32(f"{option.seed} {each}".encode()) % 2]
        first = {one.detector: one for one in reversed(MUTANTS)}
        mutants = [first[each] for each in detectors]
    if "detector" in metafunc.fixturenames:
        metafunc.parametrize("detector", detectors)
    if "mutant" in metafunc.fixturenames:
        metafunc.parametrize("mutant", mutants, ids=[one.name for one in mutants])


@number("B23")
def test_the_mutant_is_killed(
    mutant: Mutant, seed: int, postgres_server: PostgresServer, record_property: Record
) -> None:
    record_property("mutant", mutant.name)
    is_sound, complaints = run_detector(mutant.name, mutant.detector, seed, postgres_server.database())
    assert is_sound, complaints
    assert complaints, f"the detector {mutant.detector!r} saw nothing"
