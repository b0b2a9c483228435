"""Every scenario runs on every store, and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.base import Store
from tests.kit.local_server import LocalServer
from tests.kit.stores import open_store
from tests.scenarios.scenario_server import ScenarioServer, find_reason_to_skip, route_names_to_server

KINDS = ("memory", "sqlite", "postgres", "documents", "server")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each store in turn; and the store of a server, which the scenario asks through the client."""
    if request.param != "server":
        yield open_store(request.param, request, tmp_path)
        return
    reason = find_reason_to_skip(request)
    if reason is not None:
        pytest.skip(reason)
    found = open_store("sqlite", request, tmp_path)
    with LocalServer(found, listener=request.getfixturevalue("listener"), work_roots=(str(tmp_path),)) as local_server:
        server = ScenarioServer(local_server, found)
        route_names_to_server(server, request.module, monkeypatch)
        with server.client:
            yield found
        assert server.request_count, "this scenario never asked the server: say why in NOT_OVER_HTTP"
