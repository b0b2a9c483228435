"""The options of `run`, `stream` and `json`: declared once, for the library and for the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from holdfast.log.arguments import check_options, unexpected_keyword


class CallOptions(TypedDict, total=False):
    """The options of `run`, `stream` and `json`, in the library and in the client."""

    agent: Any  # an agent or a flow; in the client also the id of an agent
    temperature: float | None
    max_tokens: int | None
    tool_choice: str | None
    stop: str | Sequence[str] | None
    metadata: Mapping[str, Any] | None
    timeout: float | None  # seconds to wait for other turns of this session


def refuse_unknown_options(owner: str, method: str, options: Mapping[str, Any], kind: type) -> None:
    """Raise TypeError, as Python does, for a keyword argument that the options do not have."""
    for name in options:
        if name not in kind.__annotations__:
            if name == "schema":
                raise TypeError(f"{owner}.{method}() takes no schema: ask with {owner}.json(message, schema=...)")
            known = [*kind.__annotations__, *([] if method.startswith("run") else ["schema"])]
            raise unexpected_keyword(f"{owner}.{method}", name, known)


def model_options(options: CallOptions) -> dict[str, Any]:
    """Return the options for the model that are set. InvalidArgument for an option that no provider takes."""
    check_options(options)
    stop = options.get("stop")
    found = {
        "temperature": options.get("temperature"),
        "max_tokens": options.get("max_tokens"),
        "tool_choice": options.get("tool_choice"),
        "stop": None if stop is None else [stop] if isinstance(stop, str) else list(stop),
    }
    return {name: value for name, value in found.items() if value is not None}
