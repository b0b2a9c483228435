"""Durable sessions for AI agents: one fenced, numbered log for storage, streaming, resume, fork and audit.

The names are loaded when they are asked for: a program that only keeps sessions loads no model, and none of pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.entity import Entity
    from holdfast.flow.runner import Runner
    from holdfast.log.messages import File, Image, Message
    from holdfast.loop.mcp import MCPServer
    from holdfast.loop.response import Response
    from holdfast.loop.tools import Interrupt, ToolContext, tool
    from holdfast.memory.keyword import KeywordMemoryService
    from holdfast.models.base import Usage
    from holdfast.models.registry import LanguageModel
    from holdfast.policy.budget import Budget
    from holdfast.remembering import Memory, VectorMemoryService
    from holdfast.session import Session

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
    "tool",
]

_HOMES = {
    "Agent": "agent",
    "Budget": "policy.budget",
    "Entity": "entity",
    "File": "log.messages",
    "Image": "log.messages",
    "Interrupt": "loop.tools",
    "KeywordMemoryService": "memory.keyword",
    "LanguageModel": "models.registry",
    "MCPServer": "loop.mcp",
    "Memory": "remembering",
    "Message": "log.messages",
    "Response": "loop.response",
    "Runner": "flow.runner",
    "Session": "session",
    "ToolContext": "loop.tools",
    "Usage": "models.base",
    "VectorMemoryService": "remembering",
    "tool": "loop.tools",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class or a function
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
