"""What a model may call: the `tool` decorator, built-in tools, MCP servers.

The built-in tools are loaded when asked for, so that `import holdfast` does not pay for them:

    from holdfast.tools import file_tools
    agent = Agent(tools=[file_tools])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.tools.files import edit_file, file_tools, list_files, read_file, remember, search_files, write_file

__all__ = ["edit_file", "file_tools", "list_files", "read_file", "remember", "search_files", "write_file"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a tool
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.tools import files

    return getattr(files, name)
