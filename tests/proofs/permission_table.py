"""Who may do what: every route with the permission that it needs, and every field that needs more than its route.

`CALLS` also says how each route is asked so that it says yes. In a call `$name` stands for an id that the proof fills
in. "application" is an admin key, or a write key without a user; "a+b" needs both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who may ask a route, and how it is asked."""

    by: str  # the least role or permission, as `Principal.may` takes it
    body: Any = None
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Session], object] | None = None  # what a session must have been through for this
    refuses: bool = False  # there is nothing it says yes to


def _make_call(by: str, body: Any = None, **more: Any) -> Call:
    return Call(by=by, body=body, **more)


def start_waiting_turn(session: Session) -> None:
    session.run("spend a little")


def _approve_waiting_call(session: Session) -> None:
    session.run("spend a little")
    session.approve(session.pending[0].call_id)


MESSAGE = "POST /sessions/{session_id}/message"
HELLO = {"agent_id": "$agent", "message": "hello"}
CALLS: dict[str, Call] = {
    "GET /health": _make_call("public"),
    "GET /ready": _make_call("public"),
    "GET /metrics": _make_call("operator"),
    "GET /": _make_call("public"),
    "GET /openapi.json": _make_call("public"),
    "GET /tools": _make_call("read"),
    "GET /quota": _make_call("read"),
    "POST /agents": _make_call("admin", {"id": "$new", "provider": "echo"}),
    "GET /agents": _make_call("read"),
    "GET /agents/{agent_id}": _make_call("read"),
    "PUT /agents/{agent_id}": _make_call("admin", {"provider": "echo"}),
    "DELETE /agents/{agent_id}": _make_call("admin"),
    "POST /sessions": _make_call("chat", {"id": "$new", "user_id": "$user"}),
    "GET /sessions": _make_call("read", query={"user_id": "$user", "after": "$other"}),
    "GET /sessions/{session_id}": _make_call("read"),
    "PUT /sessions/{session_id}": _make_call("write", {"title": "another"}),
    "DELETE /sessions/{session_id}": _make_call("write"),
    "POST /sessions/{session_id}/pause": _make_call("write", {"actor": "$user"}),
    "POST /sessions/{session_id}/close": _make_call("write", {"actor": "$user"}),
    "POST /sessions/{session_id}/archive": _make_call("write", {"actor": "$user"}),
    "POST /sessions/{session_id}/reopen": _make_call("write", {"actor": "$user"}, prepare=Session.close),
    "GET /sessions/{session_id}/history": _make_call("read"),
    "POST /sessions/{session_id}/messages": _make_call("write", {"messages": [{"role": "user", "content": "more"}]}),
    "POST /sessions/{session_id}/clear": _make_call("write", {"actor": "$user"}),
    "POST /sessions/{session_id}/rewind": _make_call("write", {"to": 2, "actor": "$user"}),
    "GET /sessions/{session_id}/search": _make_call("read", query={"q": "said"}),
    "POST /sessions/{session_id}/prune": _make_call(
        "write", {"strategy": "keep_last_1", "agent_id": "$agent", "actor": "$user"}
    ),
    "POST /sessions/{session_id}/undo_prune": _make_call("write", {"actor": "$user"}),
    "GET /sessions/{session_id}/context": _make_call("read", query={"agent_id": "$agent"}),
    "POST /sessions/{session_id}/fork": _make_call("write", {"id": "$new"}),
    "GET /sessions/{session_id}/forks": _make_call("read"),
    "GET /sessions/{session_id}/compare": _make_call("read", query={"with": "$other"}),
    "POST /sessions/{session_id}/replay": _make_call("write", {"agent_id": "$agent"}),
    "GET /sessions/{session_id}/brief": _make_call("read"),
    "POST /sessions/{session_id}/successor": _make_call("write", {"id": "$new"}),
    "GET /sessions/{session_id}/state": _make_call("read"),
    "GET /sessions/{session_id}/state/{name:path}": _make_call("read"),
    "PUT /sessions/{session_id}/state/{name:path}": _make_call("write", {"value": 1}),
    "DELETE /sessions/{session_id}/state/{name:path}": _make_call("write"),
    "GET /sessions/{session_id}/facts": _make_call("read"),
    "POST /sessions/{session_id}/facts": _make_call("write", {"text": "more"}),
    "PUT /sessions/{session_id}/facts/{fact_id}": _make_call("write", {"status": "done"}),
    "DELETE /sessions/{session_id}/facts/{fact_id}": _make_call("write"),
    "GET /memory": _make_call("read", query={"user_id": "$user"}),
    "GET /memory/{key:path}": _make_call("read", query={"user_id": "$user"}),
    "PUT /memory/{key:path}": _make_call("write", {"text": "more"}, query={"user_id": "$user"}),
    "DELETE /memory/{key:path}": _make_call("write", query={"user_id": "$user"}),
    "POST /memory/search": _make_call("read", {"query": "memory more", "user_id": "$user"}),
    "POST /sessions/{session_id}/memory": _make_call("write", {}),
    "GET /approvals": _make_call("read", query={"user_id": "$user"}),
    "GET /sessions/{session_id}/approvals": _make_call("read"),
    "POST /sessions/{session_id}/approvals/{call_id:path}": _make_call(
        "approve", {"approved": True, "actor": "$user"}, prepare=start_waiting_turn
    ),
    "GET /sessions/{session_id}/unfinished": _make_call("read"),
    "GET /sessions/{session_id}/usage": _make_call("read"),
    "GET /sessions/{session_id}/export": _make_call("read"),
    "POST /sessions/import": _make_call("write", {"data": "$export", "id": "$new", "user_id": "$user"}),
    "GET /sessions/{session_id}/verify": _make_call("read"),
    "GET /sessions/{session_id}/document": _make_call("read"),
    "POST /sessions/{session_id}/redact": _make_call("admin", {"seq": "$seq", "reason": "asked for", "actor": "$user"}),
    "POST /sessions/{session_id}/hold": _make_call("admin", {"reason": "asked for", "actor": "$user"}),
    "POST /sessions/{session_id}/release": _make_call(
        "admin", {"actor": "$user"}, prepare=lambda session: session.hold("court")
    ),
    "POST /sessions/{session_id}/erase": _make_call("admin", {"reason": "asked for", "actor": "$user"}),
    "POST /sessions/{session_id}/message": _make_call("chat", {"agent_id": "$agent", "message": "hello"}),
    "POST /sessions/{session_id}/message/stream": _make_call("chat", {"agent_id": "$agent", "message": "hello"}),
    "POST /sessions/{session_id}/resume": _make_call("chat", {"agent_id": "$agent"}, prepare=_approve_waiting_call),
    "POST /sessions/{session_id}/resume/stream": _make_call(
        "chat", {"agent_id": "$agent"}, prepare=_approve_waiting_call
    ),
    "POST /sessions/{session_id}/retry": _make_call("chat", {"agent_id": "$agent", "actor": "$user"}),
    "GET /sessions/{session_id}/events": _make_call("read"),
    "GET /sessions/{session_id}/runs": _make_call("read"),
    "GET /sessions/{session_id}/runs/{run_id}": _make_call("read"),
    "POST /sessions/{session_id}/runs/{run_id}/cancel": _make_call("chat", {}),
}
FIELDS: tuple[tuple[str, Call], ...] = (
    ("POST /sessions", _make_call("chat", {"id": "$new", "title": "x", "app_name": "shop", "exist_ok": True})),
    ("POST /sessions", _make_call("write", {"metadata": {"plan": "gold"}})),
    ("POST /sessions", _make_call("write", {"state": {"credit": 1}})),
    ("POST /sessions", _make_call("write", {"messages": [{"role": "assistant", "content": "I may pay."}]})),
    ("POST /sessions", _make_call("application", {"system": "Obey."})),
    ("POST /sessions", _make_call("application", {"budget": {"tokens": 10**9}})),
    ("POST /sessions", _make_call("application", {"retention": {"ttl_days": 1}})),
    ("PUT /sessions/{session_id}", _make_call("write", {"metadata": {"plan": "gold"}})),
    ("PUT /sessions/{session_id}", _make_call("application", {"system": "Obey."})),
    ("PUT /sessions/{session_id}", _make_call("application", {"budget": {"tokens": 10**9}})),
    ("PUT /sessions/{session_id}", _make_call("application", {"retention": {"immutable": True}})),
    ("POST /sessions/import", _make_call("application", {"data": "$limited", "id": "$new"})),
    (MESSAGE, _make_call("chat", {**HELLO, "metadata": {"from": "phone"}, "on_busy": "enqueue", "timeout": 9})),
    (MESSAGE, _make_call("write", HELLO | {"temperature": 0.5})),
    (MESSAGE, _make_call("write", HELLO | {"max_tokens": 10**6})),
    (MESSAGE, _make_call("write", HELLO | {"tool_choice": "none"})),
    (f"{MESSAGE}/stream", _make_call("write", HELLO | {"max_tokens": 10**6})),
    ("POST /sessions/{session_id}/retry", _make_call("write", {"agent_id": "$agent", "max_steps": 10**6})),
    (
        "POST /sessions/{session_id}/approvals/{call_id:path}",
        _make_call("approve+write", {"approved": True, "arguments": {"cents": 7}}, prepare=start_waiting_turn),
    ),
)
