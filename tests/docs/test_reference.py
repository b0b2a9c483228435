"""docs/reference.md says what the code says: every parameter with its default, every attribute, every limit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Budget,
    LanguageModel,
    MCPServer,
    Memory,
    Response,
    Session,
    ToolContext,
    Usage,
    tool,
)
from holdfast.errors import InvalidId
from holdfast.flow import LoopAgent, ParallelAgent
from holdfast.log import codec, identifiers, messages, view
from holdfast.memory import service as memory_service
from holdfast.policy.retention import Retention
from holdfast.prompt import history_window, prompt, sections
from holdfast.session.call_options import CallOptions
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores import lease as store_lease
from holdfast.tools import files
from holdfast.turn import agent_loop, agent_runtime, start, tool_calls

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
NOT_FOR_USERS = {"on_log", "prune_if_due", "in_turn", "store", "log", "agent", "cache"}


def rows(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its first two lines."""
    section = re.split(r"^#+ ", PAGE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines, f"the page has no table under {heading!r}"
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def names(heading: str) -> list[str]:
    """The names in the first column of a table."""
    return [name for row in rows(heading) for name in code(row[0])]


def default_of(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return ""
    if repr(parameter.default) == "<factory>":
        return "`{}`"
    return f"`{parameter.default!r}`"


def parameters(function: Callable[..., Any]) -> dict[str, str]:
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.POSITIONAL_ONLY:  # the function that `tool` decorates
            found[f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name] = default_of(parameter)
    return found


@pytest.mark.parametrize(
    ("heading", "function"),
    [
        ("## Agent", Agent),
        ("## tool", tool),
        ("## LanguageModel", LanguageModel),
        ("## Session", Session),
        ("## Budget", Budget),
        ("## Retention", Retention),
    ],
)
def test_every_parameter_is_there_with_its_default(heading: str, function: Callable[..., Any]) -> None:
    shown = {code(row[0])[0]: row[1] for row in rows(heading)}
    assert shown == parameters(function)


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("## run, stream and json", list(CallOptions.__annotations__)),
        ("## Response", [each.name for each in fields(Response)]),
        ("## Usage", [each.name for each in fields(Usage)]),
    ],
)
def test_every_attribute_and_option_is_there(heading: str, expected: list[str]) -> None:
    assert names(heading) == expected


def test_the_context_of_a_tool_is_there() -> None:
    public = {name for name in dir(ToolContext) if not name.startswith("_")} - {"report_usage"}
    assert set(names("## ToolContext")) == public


def test_every_property_of_a_session_is_there() -> None:
    found = [name for name in dir(Session) if isinstance(inspect.getattr_static(Session, name), property)]
    assert sorted(names("### Session properties")) == [name for name in found if not name.startswith("_")]


def signatures(kind: type) -> Iterable[str]:
    """The methods of a class as the page writes them: `history(limit=10, role=None)`."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or name.endswith("_async") or name in NOT_FOR_USERS:
            continue
        if inspect.isfunction(member) or isinstance(member, classmethod):
            signature = inspect.signature(getattr(kind, name))
            bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
            bare = [_show_sentinel(each) for each in bare if each.name != "self"]
            prefix = f"{kind.__name__}." if isinstance(member, classmethod) else ""
            yield f"{prefix}{name}{inspect.Signature(bare)}"


class _Ellipsis:
    def __repr__(self) -> str:
        return "…"


def _show_sentinel(parameter: inspect.Parameter) -> inspect.Parameter:
    """A default that only says that the argument was left out is an ellipsis on the page."""
    return parameter.replace(default=_Ellipsis()) if type(parameter.default) is object else parameter


def test_every_method_of_a_session_is_there_with_its_parameters() -> None:
    shown, there = {code(row[0])[0] for row in rows("### Session methods")}, set(signatures(Session))
    assert (sorted(shown - there), sorted(there - shown)) == ([], [])


# -- limits --------------------------------------------------------------------------------------------------------


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def size(amount: int) -> str:
    return f"{amount >> 20} MiB" if amount >= 1 << 20 else f"{amount >> 10} KiB"


LIMITS = messages.Limits()
OWNER_BYTES = 512
EXPECTED = {
    "a tool call": f"{tool_calls.DEFAULT_TIMEOUT:g} s",
    "a call of an agent as a tool": f"{default(Agent.as_tool, 'timeout'):,} s",
    "a call of an MCP server": f"{default(MCPServer, 'timeout')} s",
    "the result of a tool that a model is sent": f"{default(tool, 'max_result_bytes'):,} bytes",
    "silence of a provider": f"{default(Agent, 'timeout')} s",
    "waiting for another turn of the session": f"{default(Agent, 'timeout')} s",
    "model calls in a turn": f"{default(Agent, 'max_steps')}",
    "attempts at structured output": f"{1 + agent_loop.MAX_REPAIRS}",
    "attempts to finish a turn that ends its process": f"{start.MAX_ATTEMPTS}",
    "a lease without renewal": f"{store_lease.DEFAULT_SECONDS:g} s",
    "the same handoff in one turn": f"{agent_runtime.MAX_SAME_HANDOFFS}",
    "rounds of a `LoopAgent`": f"{default(LoopAgent, 'max_iterations')}",
    "agents of a `ParallelAgent` at the same time": f"{default(ParallelAgent, 'max_concurrency')}",
    "share of the context window for a prompt": f"{history_window.WINDOW_SHARE:.0%}".replace("%", " %"),
    "facts in a prompt": f"{sections.FACTS_BYTES:,} bytes",
    "memories in a prompt": f"{prompt.MEMORY_BYTES:,} bytes",
    "the text of a memory": size(memory_service.MAX_TEXT),
    "a text, a title, a system prompt": size(LIMITS.text),
    "the bytes of one part": size(LIMITS.bytes_part),
    "a state value": size(LIMITS.state_value),
    "metadata": size(LIMITS.metadata),
    "nesting of JSON": f"{codec.MAX_DEPTH} levels",
    "an id": f"{identifiers.MAX_ID} characters",
    "a `user_id` or `app_name`": f"{OWNER_BYTES} bytes",
    "sessions in `Session.list`": f"{default(Session.list, 'limit')}",
    "messages in `session.search`": f"{default(Session.search, 'limit')}",
    "events in `session.events`": f"{default(Session.events, 'limit')}",
    "memories in `memory.search`": f"{default(Memory.search, 'limit')}",
    "memories in `memory.list`": f"{default(Memory.list, 'limit')}",
    "prunes that can be undone": f"{view.MAX_CUTS}",
    "a file for the file tools": size(files.MAX_FILE),
    "one answer of the file tools": size(files.MAX_READ),
    "waiting for a locked SQLite file": f"{default(SQLiteStore, 'busy_seconds'):g} s",
    "waiting for PostgreSQL": f"{default(PostgresStore, 'patience'):g} s",
    "connections to PostgreSQL": f"{default(PostgresStore, 'connections')}",
}


def test_the_limits_are_those_of_the_code() -> None:
    assert {row[0]: row[1] for row in rows("## Limits and defaults")} == EXPECTED


def test_an_owner_has_as_many_bytes_as_the_page_says() -> None:
    identifiers.check_owner("x" * OWNER_BYTES, "user_id")
    with pytest.raises(InvalidId, match=f"use 1 to {OWNER_BYTES}"):
        identifiers.check_owner("x" * (OWNER_BYTES + 1), "user_id")
