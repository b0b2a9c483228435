"""Entities: keyed, single-writer, durable things.

A method that is not marked read-only becomes the only writer of its key (it waits for the present writer, also in
another process) and runs on the newest state. If it returns, its changes are stored in one append. If it raises, or
another writer took over in the meantime, nothing is stored.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, SessionBusy, SessionError, SessionExists, StoreError
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_id, check_name
from holdfast.stores.base import Log, SessionStore, Store
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal, report_takeover
from holdfast.stores.urls import open_store

F = TypeVar("F", bound=Callable[..., Any])
_READ_ONLY_MARK = "__holdfast_read_only__"


class FreeState:
    """State without a schema: `get`, `set`, `delete`, `keys`. Changes are kept aside until the method returns."""

    def __init__(self, values: dict[str, Any], *, writable: bool) -> None:
        self._values, self._writable = values, writable

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - any JSON
        return copy.deepcopy(self._values.get(name, default))

    def set(self, name: str, value: Any) -> None:  # noqa: ANN401 - any JSON
        self._check_writable()
        self._values[check_name(name, "a state name")] = copy.deepcopy(value)

    def delete(self, name: str) -> bool:
        self._check_writable()
        return self._values.pop(name, _NOTHING) is not _NOTHING

    def keys(self) -> list[str]:
        return sorted(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def _check_writable(self) -> None:
        if not self._writable:
            raise InvalidArgument("a read-only method cannot change state: drop @Entity.read_only from it")


_NOTHING = object()


class _CurrentCall(threading.local):
    """The state of the method that runs on this thread, if one does."""

    state: Any = None
    writable = False


class Entity:
    """A durable thing with a key, one writer at a time across processes.

        class Cart(Entity):
            def add(self, item: str) -> int:
                self.state.set("items", self.state.get("items", []) + [item])
                return len(self.state.get("items"))

        Cart("user-1", store=store).add("apple")

    State is free-form by default. With an annotation `state: CartState` (a dataclass or a pydantic model, every field
    with a default) it is an instance of that class, and each field is stored by its name.
    """

    _schema: ClassVar[type | None] = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "state" in inspect.get_annotations(cls):
            cls._schema = get_type_hints(cls)["state"]
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, _wrap_method(method))

    def __init__(
        self, key: str, *, store: Store | SessionStore | str | None = None, timeout: float | None = 60.0
    ) -> None:
        self.key = check_id(key, "key")
        self.store, self.timeout = open_store(store), timeout
        self._kind = f"entity.{type(self).__name__}"
        self._current_call = _CurrentCall()

    @staticmethod
    def read_only(method: F) -> F:
        """Mark a method that changes nothing: it sees the last stored state and does not wait for the writer."""
        setattr(method, _READ_ONLY_MARK, True)
        return method

    @property
    def state(self) -> Any:  # noqa: ANN401 - a FreeState, or what the class declares
        """Inside a method the state it works on; outside, a read-only copy of what is stored."""
        if self._current_call.state is not None:
            return self._current_call.state
        return self._load_state(self.store.find(self._kind, self.key), writable=False)

    def _load_state(self, log: Log | None, *, writable: bool) -> Any:  # noqa: ANN401
        values = {} if log is None else self.store.values(log, "state/")
        return FreeState(values, writable=writable) if self._schema is None else self._schema(**values)

    def _dump(self, state: Any) -> dict[str, Any]:  # noqa: ANN401
        if isinstance(state, FreeState):
            return copy.deepcopy(state._values)
        if is_dataclass(state) and not isinstance(state, type):
            return asdict(state)
        found: dict[str, Any] = state.model_dump(mode="json")
        return found

    @contextmanager
    def _read_access(self) -> Iterator[None]:
        if self._current_call.state is not None:  # called by another method of this entity: it sees what that one did
            yield
            return
        self._current_call.state = self._load_state(self.store.find(self._kind, self.key), writable=False)
        try:
            yield
        finally:
            self._current_call.state = None

    @contextmanager
    def _write_access(self) -> Iterator[None]:
        if self._current_call.state is not None:
            if not self._current_call.writable:
                raise InvalidArgument("a read-only method cannot call one that writes")
            yield
            return
        log = self._find_or_create_log()
        epoch = self._claim_lease(log)
        with Renewal(self.store, log, epoch):
            try:
                state = self._load_state(log, writable=True)
                before = self._dump(state)
                self._current_call.state, self._current_call.writable = state, True
                yield
                self.store.append(log, _changes(before, self._dump(state)), epoch=epoch, release=True)
            except BaseException:
                with suppress(StoreError, SessionError):  # the method's own error is the one to see
                    self.store.append(log, [], epoch=epoch, release=True)
                raise
            finally:
                self._current_call.state, self._current_call.writable = None, False

    def _find_or_create_log(self) -> Log:
        log = self.store.find(self._kind, self.key)
        if log is not None:
            return log
        try:
            return self.store.create(self._kind, self.key, [Draft(type="entity.created")])
        except SessionExists:
            return self.store.require(self._kind, self.key)

    def _claim_lease(self, log: Log) -> int:
        """Take the writer's place, waiting for it up to the timeout."""
        ids = self.store.clock
        deadline = None if self.timeout is None else ids.monotonic() + self.timeout
        claim = Claim(holder=encode_holder(ids.new_id()), seconds=lease_seconds())
        pause = 0.001
        while True:
            try:
                done = self.store.append(log, [], claim=claim)
            except SessionBusy:
                if deadline is not None and ids.monotonic() >= deadline:
                    raise
            else:
                if done.has_taken_over:
                    report_takeover(log)
                return done.epoch
            ids.sleep(pause)
            pause = min(pause * 1.5, 0.05)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[Draft]:
    drafts = [
        Draft(type="state.set", data={"name": name, "value": value})
        for name, value in after.items()
        if name not in before or before[name] != value
    ]
    return drafts + [Draft(type="state.deleted", data={"name": name}) for name in before if name not in after]


def _wrap_method(method: Callable[..., Any]) -> Callable[..., Any]:
    reads = getattr(method, _READ_ONLY_MARK, False)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Entity, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            # The whole call belongs to one thread, which drives the coroutine in a loop of its own, because the
            # writer's place is held by a thread and must not block this loop.
            import asyncio

            def run() -> Any:  # noqa: ANN401
                with self._read_access() if reads else self._write_access():
                    return asyncio.run(method(self, *args, **kwargs))

            if self._current_call.state is not None:
                return await method(self, *args, **kwargs)
            return await off_thread(run)

        return call_async

    @functools.wraps(method)
    def call_sync(self: Entity, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with self._read_access() if reads else self._write_access():
            return method(self, *args, **kwargs)

    return call_sync
