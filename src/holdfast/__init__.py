"""Durable sessions for AI agents: one fenced, numbered log for storage, streaming, resume, fork and audit.

A name is imported when it is first used, so a program that only stores sessions loads no model class and no pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.entity import Entity
    from holdfast.flow.runner import Runner
    from holdfast.log.messages import File, Image, Message
    from holdfast.memory.keyword import KeywordMemoryService
    from holdfast.memory.memory import Memory, VectorMemoryService
    from holdfast.models.base import Usage
    from holdfast.models.registry import LanguageModel
    from holdfast.policy.budget import Budget
    from holdfast.session.session import Session
    from holdfast.tools.mcp import MCPServer
    from holdfast.tools.tool import Interrupt, ToolContext, interrupt, tool
    from holdfast.turn.response import Response

    __version__: str

__all__ = [
    "Agent",
    "Budget",
    "Entity",
    "File",
    "Image",
    "Interrupt",
    "KeywordMemoryService",
    "LanguageModel",
    "MCPServer",
    "Memory",
    "Message",
    "Response",
    "Runner",
    "Session",
    "ToolContext",
    "Usage",
    "VectorMemoryService",
    "interrupt",
    "tool",
]

_HOMES = {  # the module of each public name
    "Agent": "agent",
    "Budget": "policy.budget",
    "Entity": "entity",
    "File": "log.messages",
    "Image": "log.messages",
    "Interrupt": "tools.tool",
    "KeywordMemoryService": "memory.keyword",
    "LanguageModel": "models.registry",
    "MCPServer": "tools.mcp",
    "Memory": "memory.memory",
    "Message": "log.messages",
    "Response": "turn.response",
    "Runner": "flow.runner",
    "Session": "session.session",
    "ToolContext": "tools.tool",
    "Usage": "models.base",
    "VectorMemoryService": "memory.memory",
    "interrupt": "tools.tool",
    "tool": "tools.tool",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class or a function
    """Import a public name and keep it, so that this runs once for each name."""
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = version(__name__)
        return globals()[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
