"""Kits for testing what you build on holdfast: scripted replies, a store contract, crashes, faults, power loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import FixedClock
from holdfast.models.scripted import call, error

if TYPE_CHECKING:
    from holdfast.testing.contract import StoreContract

__all__ = ["FixedClock", "StoreContract", "call", "error"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name != "StoreContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.testing.contract import StoreContract  # needs pytest, which scripted replies do not

    return StoreContract
