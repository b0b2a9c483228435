"""Loads agents, tools and a memory from a user's file or module: `holdfast serve app.py`, `holdfast serve shop:app`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, NamedTuple

from holdfast.agent import Agent
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log.identifiers import check_id
from holdfast.memory.memory import Memory
from holdfast.tools.tool import Tool

_MODULE = "holdfast_app"  # the module name of a loaded file, so that it hides no other module


class App(NamedTuple):
    """The agents, tools and memory of a loaded file."""

    agents: dict[str, Agent]
    tools: dict[str, Tool]
    memory: Memory | None  # how the server finds memories; None: by keywords


def load_app(target: str) -> App:
    """Return the agents, tools and memory of `app.py`, `app.py:name`, `module` or `module:name`.

    Named or not, `app` is an agent, or a list or dict of agents; without one, every agent of the module counts. An
    agent's id is its name, else the variable or key that holds it. Stored agents can use the tools of these agents and
    every `@tool` of the module by name, except tools that come with an agent's memory. A `Memory` of the module is the
    server's; of several, the one named `memory`. Raises InvalidArgument for a module that cannot be loaded.
    """
    module, wanted = _load_module(target)
    if wanted is not None and not hasattr(module, wanted):
        raise InvalidArgument(f"{target!r}: there is no {wanted!r} in it")
    given = getattr(module, wanted or "app", None)
    pairs = list(_agents_of_module(module) if given is None else _agents_of_value(wanted or "app", given))
    agents: dict[str, Agent] = {}
    for variable, agent in pairs:
        name = check_id(agent.name or variable, "the name of an agent")
        if agents.setdefault(name, agent) is not agent:
            raise InvalidArgument(f"{target!r}: two agents are named {name!r}, and a name finds one agent")
    if not agents:
        raise InvalidArgument(f"{target!r} has no agents: define one, as in agent = Agent(name='support', ...)")
    own = [value for value in vars(module).values() if isinstance(value, Tool)]
    tools = _tools_by_name(target, [*own, *(tool for agent in agents.values() for tool in agent.own_tools.values())])
    return App(agents, tools, _find_memory(target, module))


def _find_memory(target: str, module: ModuleType) -> Memory | None:
    found = {id(value): value for value in vars(module).values() if isinstance(value, Memory)}
    if len(found) > 1:
        chosen = getattr(module, "memory", None)
        if not isinstance(chosen, Memory):
            raise InvalidArgument(f"{target!r} has {len(found)} memories: call the one of the server 'memory'")
        return chosen
    return next(iter(found.values()), None)


def _load_module(target: str) -> tuple[ModuleType, str | None]:
    place, colon, wanted = target.rpartition(":")
    if not colon:
        place, wanted = target, ""
    is_file = place.endswith(".py") or "/" in place
    try:
        module = _load_file(Path(place)) if is_file else _import_module(target, place)
    except (Exception, SystemExit) as error:
        found = _find_user_line(error)
        if found is None:  # no line of the module was run
            if isinstance(error, SyntaxError):
                raise InvalidArgument(_syntax_error_text(place, error)) from error
            raise
        text = " ".join(str(error).split())
        if not isinstance(error, AgentError):
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
            text += f"; `python {place if is_file else f'-m {place}'}` shows the traceback"
        raise InvalidArgument(f"{found[0]}, line {found[1]}: {text}") from error
    return module, wanted or None


def _import_module(target: str, name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: finds modules in the working directory
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and one of its own imports is missing
        raise InvalidArgument(f"{target!r}: there is no module {name!r}; a file is named with its .py") from error
    except (ValueError, TypeError) as error:
        if _find_user_line(error) is not None:
            raise
        raise InvalidArgument(f"{target!r} is not the name of a module: write app.py or module:app") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidArgument(f"there is no file {str(path)!r}")
    spec = spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{str(path)!r} is not a Python file: name it .py")
    module = module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and type hints look their module up
    sys.path.insert(0, str(path.resolve().parent))  # as `python app.py` does
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_MODULE]
        raise
    return module


def _find_user_line(error: BaseException) -> tuple[str, int] | None:
    """Return the file and the line of the loaded module that led to the error; None if no line of it was run."""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen "):
            return Path(file).name, line
    return None


def _syntax_error_text(place: str, error: SyntaxError) -> str:
    name = place if error.filename is None else Path(error.filename).name
    return f"{name}, line {error.lineno}: {error.msg}" if error.lineno else f"{name}: {error.msg}"


def _agents_of_module(module: ModuleType) -> Iterator[tuple[str, Agent]]:
    seen: set[int] = set()
    for name, value in vars(module).items():
        if isinstance(value, Agent) and not name.startswith("_") and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _agents_of_value(variable: str, given: Any) -> Iterator[tuple[str, Agent]]:  # noqa: ANN401 - any object
    if isinstance(given, Agent):
        yield variable, given
    elif isinstance(given, Mapping):
        for key, agent in given.items():
            yield str(key), _check_agent(variable, agent)
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        for place, agent in enumerate(given):
            if not _check_agent(variable, agent).name:
                raise InvalidArgument(f"{variable}[{place}] has no name: give it one, as in Agent(name='support', ...)")
            yield "", agent
    else:
        raise InvalidArgument(f"{variable} is an Agent, or a list or dict of them, not {type(given).__name__}")


def _check_agent(variable: str, agent: object) -> Agent:
    if not isinstance(agent, Agent):
        raise InvalidArgument(f"{variable} holds agents, and a {type(agent).__name__} is none")
    return agent


def _tools_by_name(target: str, found: Iterable[Tool]) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for tool in found:
        if tools.setdefault(tool.name, tool) is not tool:
            raise InvalidArgument(
                f"{target!r}: two tools are named {tool.name!r}, and stored agents name tools: @tool(name='...')"
            )
    return tools
