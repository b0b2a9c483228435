"""Durable sessions for AI agents: one fenced, numbered log for storage, streaming, resume, fork and audit."""

from holdfast.agent import Agent
from holdfast.entity import Entity
from holdfast.log.messages import File, Image, Message
from holdfast.loop.mcp import MCPServer
from holdfast.loop.response import Response
from holdfast.loop.tools import Interrupt, ToolContext, tool
from holdfast.models.base import Usage
from holdfast.models.registry import LanguageModel
from holdfast.policy.budget import Budget
from holdfast.session import Session

__all__ = [
    "Agent",
    "Budget",
    "Entity",
    "File",
    "Image",
    "Interrupt",
    "LanguageModel",
    "MCPServer",
    "Message",
    "Response",
    "Session",
    "ToolContext",
    "Usage",
    "tool",
]
