"""What a hostile client or page sends, and that nothing comes of it. The proofs do the same at length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from tests.proofs.browsers import BrowserAttack, check_own_requests, list_attempts, start_servers
from tests.proofs.http_detectors import check_slow_requests, try_escapes
from tests.proofs.leaks import PLACES, server_secrets
from tests.proofs.raw_http import SECONDS, find_problem, generate_cases, send_and_receive, shorten_head_limit
from tests.proofs.secured_server import TOKEN, Caller, SecuredServer

KINDS = sorted({attempt.kind for attempt in list_attempts()})


@pytest.fixture(scope="module")
def attacked_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[SecuredServer, str | None]]]:
    with start_servers(tmp_path_factory.mktemp("houses")) as found:
        yield {name: (server, key) for name, server, key in found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["open", "locked", "configured"])
def test_a_page_of_another_site_gets_nothing(
    attacked_servers: dict[str, tuple[SecuredServer, str | None]], mode: str, kind: str
) -> None:
    server, key = attacked_servers[mode]
    attack = BrowserAttack(server, key)
    chosen = [attempt for attempt in list_attempts() if attempt.kind == kind]
    attack.run(random.Random(kind).sample(chosen, min(60, len(chosen))))
    assert attack.failures == []


@pytest.mark.parametrize("mode", ["open", "locked", "configured"])
def test_an_allowed_caller_is_let_in(attacked_servers: dict[str, tuple[SecuredServer, str | None]], mode: str) -> None:
    assert list(check_own_requests(*attacked_servers[mode])) == []


def test_bytes_that_are_no_request_are_refused_and_disturb_no_client(tmp_path: Path) -> None:
    chosen = list(islice(generate_cases(random.Random(3)), 250))
    with SecuredServer(tmp_path, sessions=1, body_seconds=2.0) as server:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda case: send_and_receive(server.port, case.data), chosen))
        with Caller(server.port) as caller:
            assert caller.ask("GET", "/sessions", {"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert [complaint for pair in zip(chosen, answers, strict=True) if (complaint := find_problem(*pair))] == []


def test_a_client_that_never_comes_to_an_end_is_shown_out(tmp_path: Path) -> None:
    with (
        shorten_head_limit(SECONDS),
        SecuredServer(tmp_path, sessions=1, keep_alive=SECONDS, body_seconds=SECONDS) as server,
    ):
        assert list(check_slow_requests(server)) == []


def test_a_session_works_only_beneath_a_root(tmp_path: Path) -> None:
    root = tmp_path / "roots" / "work"
    (root / "inner").mkdir(parents=True)
    with SecuredServer(tmp_path, sessions=1, work_roots=(str(root),)) as server, Caller(server.port) as caller:
        assert list(try_escapes(caller, root)) == []


def test_no_secret_is_in_the_log_or_in_an_error() -> None:
    assert server_secrets(len(PLACES), 7).failures == []
