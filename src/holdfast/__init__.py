"""Durable sessions for AI agents: one fenced, numbered log for storage, streaming, resume, fork and audit."""

from holdfast.agent import Agent
from holdfast.entity import Entity
from holdfast.log.messages import File, Image, Message
from holdfast.session import Session

__all__ = ["Agent", "Entity", "File", "Image", "Message", "Session"]
