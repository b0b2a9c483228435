"""The form of a mutant: a change to the text of a module of holdfast, and the detector that must find it."""

from __future__ import annotations

from dataclasses import dataclass

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a module's text, and what takes its place."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, and the detector that must find it."""

    name: str
    detector: str
    edits: tuple[Edit, ...]


def mutant(name: str, detector: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, detector, tuple(Edit("holdfast." + module, old, new) for module, old, new in edits))
