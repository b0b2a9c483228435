"""Detectors of bugs in roles, approvals and work directories. They return what they found: nothing if all is well."""

from __future__ import annotations

from collections.abc import Callable

DETECTORS: dict[str, Callable[[int], list[str]]] = {}
