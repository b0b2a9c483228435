"""Who is asked: providers by name, the wire formats they speak, and two models that need no network.

Knows messages and errors. Stores, agents and sessions may not enter; httpx2 enters through `wire.py` alone, with the
first call. The names are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.log.repair import repair_history
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
    "repair_history",
]

_HOMES = {
    "LanguageModel": "holdfast.models.registry",
    "call": "holdfast.models.scripted",
    "error": "holdfast.models.scripted",
    "repair_history": "holdfast.log.repair",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class or a function
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "holdfast.models.base")), name)
