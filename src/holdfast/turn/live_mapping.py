"""A mapping that lives in a store: every read asks the store, and every write is durable when it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, MutableMapping
from typing import Any

_MISSING: Any = object()


class LiveMapping(MutableMapping[str, Any]):
    """Names and JSON values, such as `session.state`. `dict(mapping)` is a copy.

    A value that is read is a copy too: assign it again after a change, `state["cart"] = [*state["cart"], item]`.
    """

    def __init__(
        self,
        read_all: Callable[[], dict[str, Any]],
        read: Callable[[str, Any], Any],
        write: Callable[[str, Any], None],
        remove: Callable[[str], bool],
    ) -> None:
        self._read_all, self._read, self._write, self._remove = read_all, read, write, remove

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any JSON
        value = self._read(name, _MISSING)
        if value is _MISSING:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any JSON
        self._write(name, value)

    def __delitem__(self, name: str) -> None:
        if not self._remove(name):
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._read(name, _MISSING) is not _MISSING

    def __iter__(self) -> Iterator[str]:
        return iter(self._read_all())

    def __len__(self) -> int:
        return len(self._read_all())

    # One read each, in place of one for every name.
    def keys(self) -> KeysView[str]:
        return self._read_all().keys()

    def items(self) -> Any:  # noqa: ANN401 - the items of a dict
        return self._read_all().items()

    def values(self) -> Any:  # noqa: ANN401 - the values of a dict
        return self._read_all().values()

    def __eq__(self, other: object) -> bool:
        return self._read_all() == (dict(other.items()) if isinstance(other, LiveMapping) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._read_all())
