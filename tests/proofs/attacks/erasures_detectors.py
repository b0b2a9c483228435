"""Detectors of bugs in redaction and erasure. They return what they found; nothing means all is well."""

from __future__ import annotations

from collections.abc import Callable

DETECTORS: dict[str, Callable[[int], list[str]]] = {}
