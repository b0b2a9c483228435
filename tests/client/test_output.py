"""`output` over HTTP is null where no schema was asked for; the client makes it the text."""

from __future__ import annotations

import httpx2

from holdfast.client import AsyncClient, Client
from tests.client.conftest import AgentFactory
from tests.kit.local_server import TOKEN, LocalServer

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_the_body_has_an_output_only_where_a_schema_was_asked_for(
    local_server: LocalServer, register_agent: AgentFactory
) -> None:
    register_agent("one", '{"x": 1}', '"two"')
    with httpx2.Client(base_url=local_server.url, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert http.post("/sessions", json={"id": "s"}).status_code == 201

        def say(**more: object) -> dict[str, object]:
            answer = http.post("/sessions/s/message", json={"agent_id": "a", "message": "hi", **more})
            assert answer.status_code == 200, answer.text
            found: dict[str, object] = answer.json()
            return found

        plain = say()
        assert (plain["response"], plain["output"]) == ("one", None)
        assert say(schema=SCHEMA)["output"] == {"x": 1}
        assert say(schema={"type": "string"})["output"] == "two"
        run = http.get(f"/sessions/s/runs/{plain['run_id']}").json()
        assert (run["response"]["response"], run["response"]["output"]) == ("one", None)


def test_the_client_gives_the_text_where_no_schema_was_asked_for(client: Client, register_agent: AgentFactory) -> None:
    register_agent("one", "two")
    session = client.session("s", agent="a")
    first = session.run("a")
    assert first.output == "one"
    assert list(session.stream("b"))[-1].response.output == "two"  # type: ignore[union-attr]
    assert session.get_run(first.run_id).response.output == "one"  # type: ignore[union-attr]


async def test_the_awaited_client_gives_the_text_too(async_client: AsyncClient, register_agent: AgentFactory) -> None:
    register_agent("one")
    session = await async_client.session("s", agent="a")
    assert (await session.run("a")).output == "one"
