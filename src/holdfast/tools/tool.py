"""Tools: functions that a model may call, their context, and the text that is made of their results.

A tool's arguments come from a model and its results go to one: everything is checked on the way in, and becomes plain,
valid, bounded text on the way out.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol, overload, runtime_checkable

from pydantic import BaseModel, ValidationError

from holdfast.errors import BadArguments, InvalidTool, NotJSON, ToolError
from holdfast.log import codec
from holdfast.log.arguments import suggest_keywords
from holdfast.log.messages import File, Image
from holdfast.policy.approvers import is_approval
from holdfast.schema.signature import Signature, describe_problems, is_unbound, read_signature

__all__ = [
    "Interrupt",
    "Tool",
    "ToolContext",
    "as_tools",
    "clip",
    "render",
    "tool",
]

MAX_RESULT = 262_144
MIN_RESULT = 128  # so that the marker of a cut fits
EXIT_LOOP = ""  # the signal that ends a loop; no agent has this name
LAMBDA = (lambda: None).__name__
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider takes
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")  # what Python writes for an object without a text of its own
_SURROGATES = re.compile("[\ud800-\udfff]")

# "always", "second_person", names of those who may decide, or a function of the arguments that returns one of these.
Approval = Literal["always", "second_person"] | Collection[str] | Callable[[dict[str, Any]], object] | None


class Interrupt(Exception):
    """Raised in a tool to ask a person: the turn waits, and `resume()` runs the call again."""

    def __init__(self, payload: object = None) -> None:
        self.payload = payload
        super().__init__(payload)


ANSWERS: ContextVar[Iterator[Any] | None] = ContextVar("holdfast_answers", default=None)
"""The answers that people gave to the interrupts of the call that runs here, in order."""


def interrupt(payload: object = None) -> Any:  # noqa: ANN401 - the person's answer
    """Ask a person from inside a tool, and return the answer of `session.answer(call_id, value)`.

    The first time this raises `Interrupt`, and the turn waits. When the call runs again after `resume()`, this returns
    the answer; the part of the tool before it runs again. A tool may ask several times, in the same order each time.
    """
    answers = ANSWERS.get()
    for answer in () if answers is None else answers:
        return answer
    raise Interrupt(payload)


def _never_cancelled() -> bool:
    return False


def _ignore_progress(_text: str) -> None:
    pass


class ToolContext:
    """What a tool may know of the turn that calls it: a parameter with this type is filled in, and hidden from models.

    A tool that is to be repeated safely hands `idempotency_key` to the outside world; a long one looks at `cancelled`.
    """

    __slots__ = ("_cancelled", "_on_progress", "_work_dir", "idempotency_key", "report_usage", "session", "state")

    session: Any
    state: Any
    idempotency_key: str

    def __init__(
        self,
        *,
        session: object = None,
        state: object = None,
        work_dir: Path | Callable[[], Path] | None = None,
        idempotency_key: str = "",
        cancelled: Callable[[], bool] | Event = _never_cancelled,
        on_progress: Callable[[str], None] = _ignore_progress,
        meter: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self.session, self.state, self._work_dir = session, state, work_dir
        self.idempotency_key = idempotency_key
        self.report_usage = meter  # takes the usage of an agent that runs as a tool; raises if the budget is exceeded
        self._cancelled = cancelled.is_set if isinstance(cancelled, Event) else cancelled
        self._on_progress = on_progress

    @property
    def work_dir(self) -> Path | None:
        """The folder of the session's files. A server checks each time whether it is the owner's, and may refuse."""
        found = self._work_dir
        return found() if callable(found) else found

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled: its result is not used any more."""
        return self._cancelled()

    def interrupt(self, payload: object = None) -> Any:  # noqa: ANN401 - the person's answer
        """Ask a person, and return the answer of `session.answer(call_id, value)`. The same as `holdfast.interrupt`."""
        return interrupt(payload)

    def progress(self, text: str) -> None:
        """Send a text about the progress of this call to the readers of the stream."""
        self._on_progress(_to_valid_text(text))


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool:
    """A function with its schema and its promises. Calling it calls the function."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    is_async: bool = False
    idempotent: bool = False
    timeout: float | None = None
    approval: Approval = None
    approval_timeout: float | None = None  # seconds after which a request for approval counts as denied
    max_result_bytes: int = MAX_RESULT
    signature: Signature | None = field(default=None, repr=False)  # None: the function checks its arguments itself
    signal: str | None = None  # answered by the loop itself: EXIT, or the name of the agent to hand over to

    def __post_init__(self) -> None:
        if self.name == LAMBDA:
            raise InvalidTool("a lambda has no name: write it with def, or tool(name='...')(lambda ...)")
        if not _NAME.fullmatch(self.name):
            raise InvalidTool(
                f"{self.name!r} is no name for a tool: use 1 to 64 letters, digits, '_' or '-', as in @tool(name='...')"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidTool(f"tool {self.name!r}: timeout={self.timeout!r} must be a number of seconds above 0")
        if not callable(self.approval) and not is_approval(self.approval):
            raise InvalidTool(
                f"tool {self.name!r}: approval is 'always', 'second_person', a list of the names of those who may "
                "decide, None, or a function of the arguments"
            )
        if self.approval_timeout is not None and not self.approval_timeout > 0:
            raise InvalidTool(f"tool {self.name!r}: approval_timeout= must be a number of seconds above 0")
        if self.max_result_bytes < MIN_RESULT:
            raise InvalidTool(f"tool {self.name!r}: max_result_bytes must be at least {MIN_RESULT}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function has it
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A decorated method belongs to its object, as a plain one does."""
        if instance is None or not is_unbound(self.function):
            return self
        return dataclasses.replace(self, function=self.function.__get__(instance, owner))

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function  # for help() and inspect.signature()

    @property
    def wants_context(self) -> bool:
        return self.signature is not None and self.signature.context_parameter is not None

    def validate(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """The keyword arguments of the call, checked and converted."""
        try:
            given = codec.parse(arguments or "{}") if isinstance(arguments, str) else dict(arguments)
            data = codec.encode(given)
        except NotJSON as error:
            raise BadArguments(self.name, [str(error)]) from error
        if not isinstance(given, dict):
            raise BadArguments(self.name, [f"they are a JSON object, not a {type(given).__name__}"])
        if self.signature is None:
            return given
        try:
            return self.signature.convert_arguments(data)
        except ValidationError as error:
            known = self.signature.names.values()
            raise BadArguments(self.name, describe_problems(error, given, known)) from error

    def start(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:  # noqa: ANN401 - or a coroutine of it
        """Call the function with validated arguments, and with the context if it wants one."""
        if self.signature is None or self.signature.context_parameter is None:
            return self.function(**kwargs)
        return self.function(**kwargs, **{self.signature.context_parameter: context})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredResult:
    """A result that took calls of models: their usage counts in the session of the caller."""

    content: object
    usage: Mapping[str, int]
    session: str  # where it was done
    is_error: bool = False


CALLER_BUDGET: ContextVar[Callable[[Mapping[str, int]], None] | None] = ContextVar("holdfast_meter", default=None)
"""Of the call that an agent runs in as a tool: its turns tell it what they used."""


@runtime_checkable
class HasTools(Protocol):
    """Something that offers tools, such as an MCP server."""

    def tools(self) -> Iterable[Tool]: ...


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: float | None = None,
    approval: Approval = None,
    approval_timeout: float | None = None,
    max_result_bytes: int = MAX_RESULT,
) -> Callable[[Callable[..., Any]], Tool]: ...


@suggest_keywords
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: float | None = None,
    approval: Approval = None,
    approval_timeout: float | None = None,
    max_result_bytes: int = MAX_RESULT,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: `@tool`, or `@tool(idempotent=True, timeout=30, approval="always")`.

    The model is sent the function's name, docstring and parameters. `idempotent` says that it may be repeated when a
    crash left its outcome unknown.
    """

    def make(function: Callable[..., Any]) -> Tool:
        given = _check_function(function)
        called = str(name or getattr(given, "__name__", ""))
        signature = read_signature(given, called, ToolContext)
        return Tool(
            name=called,
            description=signature.description if description is None else description,
            parameters=signature.parameters,
            function=given,
            is_async=_is_async(given),
            idempotent=idempotent,
            timeout=timeout,
            approval=approval,
            approval_timeout=approval_timeout,
            max_result_bytes=max_result_bytes,
            signature=signature,
        )

    return make if function is None else make(function)


def tool_name(name: str) -> str:
    """The name of an agent as that of a tool."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def _check_function(function: object) -> Callable[..., Any]:
    if isinstance(function, Tool):
        raise InvalidTool(f"{function.name!r} is a tool already: dataclasses.replace() changes its options")
    if isinstance(function, str):
        raise InvalidTool(
            f"a tool is made from a function, not from {function!r}: name it with @tool(name={function!r})"
        )
    if inspect.isclass(function) or not callable(function):
        raise InvalidTool(f"a tool is made from a function, not from {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTool(f"{function!r} is a generator: a tool returns its result in one piece")
    return function


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def as_tools(given: object) -> list[Tool]:
    """Every tool in functions, tools, things that offer tools, and lists of these, however deep."""
    found: dict[str, Tool] = {}
    for item in _flatten_tools(given):
        if item.name in found:
            raise InvalidTool(f"two tools are named {item.name!r}: give one another name with @tool(name='...')")
        if is_unbound(item.function):
            raise InvalidTool(
                f"tool {item.name!r} is a method: give the one of an object, as in Agent(tools=[shop.{item.name}])"
            )
        found[item.name] = item
    return list(found.values())


def _flatten_tools(given: object) -> Iterable[Tool]:
    if given is None:
        return
    if isinstance(given, Tool):
        yield given
    elif isinstance(given, HasTools) and not inspect.isclass(given):
        yield from given.tools()
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        for item in given:
            yield from _flatten_tools(item)
    else:
        yield tool(_check_function(given))


def render(result: object, media: list[Image | File] | None = None) -> str:
    """What a model reads of a tool's result: text as it is, structures as JSON, other values through `str()`.

    Images and files in it are named in the text and added to `media`. Raises ToolError for what no model can read.
    """
    found = [] if media is None else media
    if isinstance(result, Enum):
        return render(result.value, found)
    if isinstance(result, str):
        return _to_valid_text(result)
    if isinstance(result, (Image, File)):
        return _to_valid_text(_add_media(result, found))
    if isinstance(result, (bytes, bytearray, memoryview)):
        raise ToolError(
            f"the tool returned {len(result)} bytes, which no model can read: return text, or a file's path, "
            "or the bytes in Image(data=...) or File(data=...)"
        )
    if isinstance(result, (Mapping, list, tuple, set, frozenset, BaseModel)) or _is_dataclass(result):
        with suppress(TypeError, ValueError, RecursionError):  # odd keys, cycles: the tool did its work all the same
            return _to_valid_text(json.dumps(result, default=partial(_json_default, found), ensure_ascii=False))
    return _to_valid_text(_text_of(result))


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _json_default(media: list[Image | File], value: Any) -> object:  # noqa: ANN401 - any value that json does not know
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (Image, File)):
        return _add_media(value, media)
    if _is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"({len(value)} bytes)"
    return _text_of(value)


def _add_media(part: Image | File, media: list[Image | File]) -> str:
    """Add an image or a file to the parts of a result, and return the words that stand in its place."""
    media.append(part)
    about = [part.name, part.url, part.media_type, None if part.data is None else f"{len(part.data)} bytes"]
    return f"[{part.type} {len(media)}: {', '.join(each for each in about if each)}]"


def _text_of(value: object) -> str:
    """The text of a value that is no structure. ToolError for an object that only tells its class and its address."""
    text = str(value)
    is_opaque = type(value).__str__ is object.__str__ and text.startswith("<") and text.endswith(">")
    if is_opaque or _ADDRESS.search(text):
        raise ToolError(
            f"the tool returned an object of the class {type(value).__qualname__}, which no model can read: "
            "return a text, a number, a list, a dict, a dataclass or a pydantic model"
        )
    return text


def _to_valid_text(text: str) -> str:
    """Exactly a `str`, and valid Unicode."""
    if text.isascii():
        return str.__str__(text)
    return _SURROGATES.sub("\ufffd", text)


def clip(text: str, max_bytes: int) -> tuple[str, bytes | None]:
    """The text within its limit; where it had to be cut, a marker names the full size, and the whole comes second."""
    if len(text) * 4 <= max_bytes:  # a character has at most four bytes
        return text, None
    whole = text.encode()
    if len(whole) <= max_bytes:
        return text, None
    marker = "\n[cut: {} of {} bytes are shown]"
    room = max(0, max_bytes - len(marker.format(max_bytes, len(whole))))
    kept = whole[:room].decode(errors="ignore")  # what is ignored is the part of a character at the cut
    return kept + marker.format(len(kept.encode()), len(whole)), whole
