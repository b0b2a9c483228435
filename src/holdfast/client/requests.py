"""What is asked of a server, as values: a method of the client is a flow that yields calls and is sent their answers.

A flow knows nothing of how a call travels. The blocking client performs it, the awaited one awaits it: `performed` and
`performed_async` are the only twins, and everything a session can do is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote

from holdfast.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.client.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `key` makes it the same request however often it has to be sent."""

    method: Method
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    key: str | None = None
    is_text: bool = False  # the answer is a text, not JSON
    waits: bool = False  # the answer comes once a run is over, so silence is no failure
    is_stream: bool = False  # the answer is a stream of events
    last_event: str | None = None  # the last frame of that stream that was seen


Flow = Generator[Call, Any, T]


def get(path: str, *, is_text: bool = False, **query: object) -> Call:
    return Call(method="GET", path=path, query=_drop_none(query), is_text=is_text)


def post(path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None, waits: bool = False) -> Call:
    return Call(method="POST", path=path, body=body or {}, key=key or SYSTEM_CLOCK.new_id(), waits=waits)


def put(path: str, body: Mapping[str, Any], **query: object) -> Call:
    return Call(method="PUT", path=path, query=_drop_none(query), body=body, key=SYSTEM_CLOCK.new_id())


def delete(path: str, **query: object) -> Call:
    return Call(method="DELETE", path=path, query=_drop_none(query), key=SYSTEM_CLOCK.new_id())


def _drop_none(query: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def url_path(*steps: str) -> str:
    """A path of steps that may hold any character. Dots are written out, or `..` would be taken for a way up."""
    return "".join("/" + (quote(step, safe="") if step.strip(".") else step.replace(".", "%2E")) for step in steps)


class HasTransport(Protocol):
    """An object with methods that are flows: a client, a session, its facts."""

    @property
    def _transport(self) -> Transport: ...


S = TypeVar("S", bound=HasTransport)
S_contra = TypeVar("S_contra", bound=HasTransport, contravariant=True)


def perform(wire: Transport, flow: Flow[T]) -> T:
    """Perform a flow on this thread."""
    try:
        call = next(flow)
        while True:
            try:
                answer = wire.send(call)
            except BaseException as error:  # noqa: BLE001 - a flow may know what to do about it, or else it is raised
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found


async def perform_async(wire: Transport, flow: Flow[T]) -> T:
    """The same, awaited."""
    try:
        call = next(flow)
        while True:
            try:
                answer = await wire.send_async(call)
            except BaseException as error:  # noqa: BLE001 - as above
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found


def sync_method(flow: Callable[Concatenate[S, P], Flow[T]]) -> Callable[Concatenate[S, P], T]:
    """The method that performs a flow: `history = blocking(talk.history)`."""

    @wraps(flow)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return perform(self._transport, flow(self, *args, **kwargs))

    return method


def async_method(flow: Callable[Concatenate[S, P], Flow[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The method that awaits a flow."""

    @wraps(flow)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await perform_async(self._transport, flow(self, *args, **kwargs))

    return method


class remote_property(Generic[S_contra, T_co]):
    """A property that performs a flow each time it is read: `status = reading(about.status)`."""

    def __init__(self, flow: Callable[[S_contra], Flow[T_co]]) -> None:
        self._flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, holder: None, owner: object) -> remote_property[S_contra, T_co]: ...
    @overload
    def __get__(self, holder: S_contra, owner: object) -> T_co: ...
    def __get__(self, holder: S_contra | None, owner: object) -> T_co | remote_property[S_contra, T_co]:
        return self if holder is None else perform(holder._transport, self._flow(holder))

    def __set__(self, holder: object, value: object) -> None:
        raise AttributeError("this is read from the server: change(...) changes what can be changed")
