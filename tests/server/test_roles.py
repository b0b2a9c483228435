"""What each kind of key is for: a device chats, a backend writes, a person approves, an admin holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Session
from holdfast.client import Client
from holdfast.errors import Forbidden, InvalidArgument, WrongApprover
from holdfast.server.api_keys import create_key, find_key
from holdfast.stores import MemoryStore
from tests.proofs.secured_server import Answer, Caller, SecuredServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with SecuredServer(tmp_path_factory.mktemp("roles"), sessions=1) as server:
        yield server


class Keys:
    """Requests by the names of keys."""

    def __init__(self, server: SecuredServer, caller: Caller) -> None:
        self.server, self.caller = server, caller

    def ask(self, name: str, method: str, path: str, body: Any = None) -> Answer:
        return self.caller.ask(method, path, self.server.contents.principals[name].headers, body)

    def create(self, name: str, **body: Any) -> str:
        answer = self.ask(name, "POST", "/sessions", body)
        assert answer.status == 201, answer.body
        return f"/sessions/{answer.json['id']}"

    def wait_for_approval(self, name: str, place: str) -> str:
        answer = self.ask(name, "POST", f"{place}/message", {"agent_id": "helper", "message": "spend a little"})
        assert answer.json["status"] == "waiting", answer.body
        return f"{place}/approvals/{answer.json['pending'][0]['call_id']}"


@pytest.fixture
def keys(server: SecuredServer) -> Iterator[Keys]:
    with Caller(server.port) as caller:
        yield Keys(server, caller)


DEVICE = "acme alice chat"


def test_a_device_begins_a_conversation_goes_on_with_it_and_reads_it(keys: Keys) -> None:
    place = keys.create(DEVICE, title="From my phone")
    answer = keys.ask(DEVICE, "POST", f"{place}/message", {"agent_id": "helper", "message": "hello"})
    assert (answer.status, answer.json["status"]) == (200, "finished")
    assert len(keys.ask(DEVICE, "GET", f"{place}/history").json["messages"]) == 2
    assert keys.ask(DEVICE, "GET", place).json["user_id"] == "alice"
    waiting = keys.wait_for_approval(DEVICE, place)
    run = keys.ask(DEVICE, "GET", f"{place}/runs").json["runs"][0]["run_id"]
    assert keys.ask(DEVICE, "POST", waiting, {"approved": True}).status == 403
    assert keys.ask(DEVICE, "POST", f"{place}/runs/{run}/cancel", {}).json["status"] == "cancelled"


def test_a_device_key_is_always_a_users() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidArgument, match="user"):
        create_key(store, role="chat")
    key, _ = create_key(store, role="chat", user="alice", may_approve=True)
    found = find_key(store, key)
    assert found is not None
    assert (found.role, found.user, found.may_approve) == ("chat", "alice", True)


@pytest.mark.parametrize("move", ["pause", "close", "archive"])
def test_a_device_does_not_open_what_the_application_has_closed(keys: Keys, move: str) -> None:
    place = keys.create(DEVICE)
    assert keys.ask("acme service write", "POST", f"{place}/{move}", {}).status == 200
    for path in ("resume", "resume/stream"):
        answer = keys.ask(DEVICE, "POST", f"{place}/{path}", {"agent_id": "helper"})
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert keys.ask(DEVICE, "GET", place).json["status"] != "open"
    way = "resume" if move == "pause" else "reopen"
    assert keys.ask("acme alice write", "POST", f"{place}/{way}", {}).status == 200
    assert keys.ask(DEVICE, "POST", f"{place}/resume", {}).status == 200  # there is nothing to decide any more


def test_a_session_that_exists_is_opened_by_a_device_and_not_changed(keys: Keys) -> None:
    place = keys.create("acme service write", user_id="alice", system="Be kind.", metadata={"plan": "free"})
    id = place.rpartition("/")[2]
    assert keys.ask(DEVICE, "POST", "/sessions", {"id": id, "exist_ok": True}).status == 200
    fields: list[dict[str, Any]] = [
        {"system": None},
        {"metadata": {}},
        {"state": {}},
        {"budget": None},
        {"messages": []},
    ]
    for field in fields:
        answer = keys.ask(DEVICE, "POST", "/sessions", {"id": id, "exist_ok": True} | field)
        assert answer.status == 403, field
        assert next(iter(field)) in answer.json["error"]
    answer = keys.ask(DEVICE, "POST", f"{place}/message", {"message": "hi", "schema": {"type": "object"}})
    assert (answer.status, answer.json["error"].count("schema")) == (403, 1)
    assert "output_schema" not in answer.json["error"]
    found = keys.ask(DEVICE, "GET", place).json
    assert (found["system"], found["metadata"]) == ("Be kind.", {"plan": "free"})


def test_a_key_of_a_user_does_not_take_the_limits_of_the_user_away(keys: Keys) -> None:
    limits = {"system": "Be kind.", "budget": {"turns": 1}, "retention": {"ttl_days": 3.0}}
    place = keys.create("acme service write", user_id="alice", **limits)
    for change in ({"system": None}, {"budget": None}, {"budget": {"turns": 9}}, {"retention": {"ttl_days": 900}}):
        for name in ("acme alice write", DEVICE):
            assert keys.ask(name, "PUT", place, change).status == 403
    found = keys.ask("acme alice write", "GET", place).json
    assert (found["system"], found["budget"], found["retention"]["ttl_days"]) == ("Be kind.", {"turns": 1}, 3.0)
    assert keys.ask("acme service write", "PUT", place, {"budget": {"turns": 2}}).status == 200
    assert keys.ask("acme alice admin", "PUT", place, {"budget": {"turns": 3}}).status == 200


def test_a_hold_is_an_admins_and_so_cannot_stop_an_erasure_by_a_user(keys: Keys, server: SecuredServer) -> None:
    place = keys.create("acme alice write")
    for name in ("acme alice write", "acme service write", DEVICE):
        assert keys.ask(name, "POST", f"{place}/hold", {"reason": "mine"}).status == 403
    session = Session.open(place.rpartition("/")[2], store=server.store.for_tenant("acme"))
    assert session.erase(reason="asked for", actor="dpo").events > 0


def test_a_budget_of_a_session_is_never_above_that_of_its_agent(keys: Keys) -> None:
    spec = {"id": "thrifty", "name": "thrifty", "provider": "echo", "budget": {"turns": 1}}
    assert keys.ask("acme service admin", "POST", "/agents", spec).status == 201
    for lifted in ({"turns": 100}, {"tokens": 10**9}, None):
        place = keys.create("acme service write", user_id="alice", budget=lifted)
        ask = {"agent_id": "thrifty", "message": "hello"}
        assert keys.ask(DEVICE, "POST", f"{place}/message", ask).status == 200
        assert keys.ask("acme service admin", "PUT", place, {"budget": lifted}).status == 200
        answer = keys.ask(DEVICE, "POST", f"{place}/message", ask)
        assert (answer.status, answer.json["code"]) == (429, "budget_exceeded"), lifted
    strict = keys.create("acme service write", user_id="alice", budget={"turns": 0})
    answer = keys.ask(DEVICE, "POST", f"{strict}/message", {"agent_id": "thrifty", "message": "hello"})
    assert answer.json["code"] == "budget_exceeded"


class TestApproving:
    @pytest.mark.parametrize("name", [DEVICE, "acme alice write", "acme service write", "acme alice read"])
    def test_needs_a_permission_of_its_own(self, keys: Keys, name: str) -> None:
        place = keys.wait_for_approval(DEVICE, keys.create(DEVICE))
        for body in ({"approved": True}, {"approved": False}, {"approved": True, "answer": 1}):
            answer = keys.ask(name, "POST", place, body)
            assert (answer.status, answer.json["code"]) == (403, "forbidden")
            assert "--approve" in answer.json["error"]

    @pytest.mark.parametrize(
        "name", ["acme alice chat+approve", "acme service read+approve", "acme alice write+approve", "acme alice admin"]
    )
    def test_is_allowed_to_keys_that_have_it(self, keys: Keys, name: str) -> None:
        session = keys.create(DEVICE)
        place = keys.wait_for_approval(DEVICE, session)
        assert keys.ask(name, "POST", place, {"approved": True}).json == {"pending": []}
        answer = keys.ask(DEVICE, "POST", f"{session}/resume", {"agent_id": "helper"})
        assert answer.json["status"] == "finished"

    @pytest.mark.parametrize("name", ["acme alice chat+approve", "acme service read+approve"])
    def test_with_other_arguments_needs_write_too(self, keys: Keys, name: str) -> None:
        place = keys.wait_for_approval(DEVICE, keys.create(DEVICE))
        body = {"approved": True, "arguments": {"cents": 10**9}}
        assert keys.ask(name, "POST", place, body).status == 403
        assert keys.ask("acme alice write+approve", "POST", place, body).status == 200

    def test_does_not_reach_the_sessions_of_others(self, keys: Keys) -> None:
        place = keys.wait_for_approval("acme bob write", keys.create("acme bob write"))
        assert keys.ask("acme alice chat+approve", "POST", place, {"approved": True}).status == 404

    def test_by_a_second_person_is_not_done_by_the_user_or_the_key_that_asked(self, keys: Keys) -> None:
        place = keys.create("acme service write", user_id="alice")
        asked = {"agent_id": "helper", "message": "transfer a lot"}
        answer = keys.ask("acme service write", "POST", f"{place}/message", asked)
        decision = f"{place}/approvals/{answer.json['pending'][0]['call_id']}"
        refused = keys.ask("acme alice chat+approve", "POST", decision, {"approved": True})
        assert (refused.status, refused.json["code"]) == (403, "wrong_approver")
        reviewer = "acme service read+approve"
        named = keys.ask(reviewer, "POST", decision, {"approved": True, "actor": "alice"})
        assert (named.status, named.json["code"]) == (403, "wrong_approver")
        assert keys.ask(reviewer, "POST", decision, {"approved": True, "actor": "bob"}).status == 200
        events = keys.ask(reviewer, "GET", f"{place}/events?types=approval.decided").json["events"]
        assert [(each["actor"], each["data"]["approvers"]) for each in events] == [("bob", "second_person")]


def test_the_client_says_what_a_key_may_not_do(server: SecuredServer) -> None:
    key = server.contents.principals["acme alice chat+approve"].key
    with Client(f"http://127.0.0.1:{server.port}", token=key) as client:
        session = client.session(agent="helper", title="From my phone")
        assert session.run("hello").text
        with pytest.raises(Forbidden, match="needs write"):
            session.set_state("credit", 1)
        with pytest.raises(Forbidden, match="needs write"):
            session.system = "Obey."
        with pytest.raises(Forbidden, match="system"):
            client.session(system="Obey.")
        with pytest.raises(Forbidden, match="max_tokens"):
            session.run("hello", max_tokens=10**6)
        with pytest.raises(Forbidden, match="admin"):
            session.hold("mine")
        waiting = session.run("transfer a lot")
        with pytest.raises(WrongApprover) as caught:
            session.approve(waiting.pending[0].call_id)
        assert (caught.value.code, caught.value.actor) == ("wrong_approver", "alice")
