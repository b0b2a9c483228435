"""Detectors of bugs in the fair use of a server. They return what they found; nothing means all is well."""

from __future__ import annotations

from collections.abc import Callable

DETECTORS: dict[str, Callable[[int], list[str]]] = {}
