"""What a hostile client or page sends, and that nothing comes of it. The proofs do the same at length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from tests.proofs.browsers import Siege, attempts, houses, welcome
from tests.proofs.http_detectors import endless, escapes
from tests.proofs.leaks import PLACES, server_secrets
from tests.proofs.raw_http import SECONDS, cases, exchange, judged, short_heads
from tests.proofs.secured_server import TOKEN, Caller, House

KINDS = sorted({attempt.kind for attempt in attempts()})


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[House, str | None]]]:
    with houses(tmp_path_factory.mktemp("houses")) as found:
        yield {name: (house, key) for name, house, key in found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["open", "locked", "configured"])
def test_a_page_of_another_site_gets_nothing(
    besieged: dict[str, tuple[House, str | None]], mode: str, kind: str
) -> None:
    house, key = besieged[mode]
    siege = Siege(house, key)
    chosen = [attempt for attempt in attempts() if attempt.kind == kind]
    siege.endure(random.Random(kind).sample(chosen, min(60, len(chosen))))
    assert siege.failures == []


@pytest.mark.parametrize("mode", ["open", "locked", "configured"])
def test_whoever_may_call_is_let_in(besieged: dict[str, tuple[House, str | None]], mode: str) -> None:
    assert list(welcome(*besieged[mode])) == []


def test_what_is_no_request_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    chosen = list(islice(cases(random.Random(3)), 250))
    with House(tmp_path, rooms=1, body_seconds=2.0) as house:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda case: exchange(house.port, case.data), chosen))
        with Caller(house.port) as caller:
            assert caller.ask("GET", "/sessions", {"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert [complaint for pair in zip(chosen, answers, strict=True) if (complaint := judged(*pair))] == []


def test_a_client_that_never_comes_to_an_end_is_shown_out(tmp_path: Path) -> None:
    with short_heads(SECONDS), House(tmp_path, rooms=1, keep_alive=SECONDS, body_seconds=SECONDS) as house:
        assert list(endless(house)) == []


def test_a_session_works_only_beneath_a_root(tmp_path: Path) -> None:
    root = tmp_path / "roots" / "work"
    (root / "inner").mkdir(parents=True)
    with House(tmp_path, rooms=1, work_roots=(str(root),)) as house, Caller(house.port) as caller:
        assert list(escapes(caller, root)) == []


def test_no_secret_is_in_the_log_or_in_an_error() -> None:
    assert server_secrets(len(PLACES), 7).failures == []
