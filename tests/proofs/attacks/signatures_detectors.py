"""Detectors of bugs in signed heads and in the walls inside the database. They return what they found."""

from __future__ import annotations

from collections.abc import Callable

DETECTORS: dict[str, Callable[[int], list[str]]] = {}
