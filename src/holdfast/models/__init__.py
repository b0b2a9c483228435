"""Who is asked: providers by name, the wire formats they speak, and two models that need no network.

Knows messages and errors. Stores, agents and sessions may not enter; httpx2 enters through `wire.py` alone, with the
first call.
"""

from holdfast.models.base import (
    BlockStart,
    BlockStop,
    Done,
    InputJSONDelta,
    Model,
    ModelEvent,
    ModelRequest,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
    Usage,
    repaired,
)
from holdfast.models.registry import LanguageModel
from holdfast.models.scripted import call, error

__all__ = [
    "BlockStart",
    "BlockStop",
    "Done",
    "InputJSONDelta",
    "LanguageModel",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "StopReason",
    "TextDelta",
    "ThinkingDelta",
    "ToolSpec",
    "Usage",
    "call",
    "error",
    "repaired",
]
