"""docs/server.md says what the server does: every route with its permission, every setting, every name of a stream."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import iter_route_contexts

from holdfast.server.app import Server, create_app
from holdfast.server.auth import permission_of
from holdfast.server.config import Config, settings_table
from holdfast.server.schemas.stream_frames import RUN_STREAM
from holdfast.stores import MemoryStore

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
ROW = re.compile(r"^\| `([A-Z]+) (/[^` ]*)` \| (\w+) \|", re.MULTILINE)


def server() -> Server:
    return Server(MemoryStore(), Config(open=True))


def test_every_route_is_documented_with_the_role_that_it_needs_and_no_other() -> None:
    there = set()
    for route in iter_route_contexts(create_app(server()).routes):
        path = (route.path or "").replace("{session_id}", "{id}").replace(":path}", "}")
        there |= {(method, path, permission_of(route)) for method in route.methods or ()}
    assert set(ROW.findall(TEXT)) == there


def test_the_table_of_settings_is_the_one_that_the_server_is_made_from() -> None:
    assert settings_table() in TEXT, "write docs/server.md's table with holdfast.server.config.settings_table()"


def test_every_name_of_a_stream_is_documented() -> None:
    names = RUN_STREAM["content"]["text/event-stream"]["itemSchema"]["properties"]["event"]["enum"]
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_every_metric_is_documented() -> None:
    metrics = {metric.name: metric for metric in server().metrics.registry.collect()}
    shown = [f"{name}_total" if metric.type == "counter" else name for name, metric in metrics.items()]
    assert [name for name in shown if name.startswith("holdfast_") and f"`{name}`" not in TEXT] == []
