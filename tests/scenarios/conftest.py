"""Every scenario runs on every store, and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.base import Store
from tests.kit.serving import Serving
from tests.kit.stores import open_kind
from tests.scenarios.served import Door, enter, reason_against

KINDS = ("memory", "sqlite", "postgres", "documents", "server")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each store in turn; and the store of a server, which the scenario asks through the client."""
    if request.param != "server":
        yield open_kind(request.param, request, tmp_path)
        return
    reason = reason_against(request)
    if reason is not None:
        pytest.skip(reason)
    found = open_kind("sqlite", request, tmp_path)
    with Serving(found, listener=request.getfixturevalue("listener"), work_roots=(str(tmp_path),)) as serving:
        door = Door(serving, found)
        enter(door, request.module, monkeypatch)
        with door.client:
            yield found
        assert door.asked, "this scenario never asked the server: say why in NOT_OVER_HTTP"
