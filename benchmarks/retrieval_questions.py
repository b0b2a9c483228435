"""Memories of an assistant about Tessa, an invented user, and her questions about them in other words.

`retrieval_questions.txt` has a key and a memory in a line, and below it the questions that only this memory answers.
Most memories have two questions: one that shares no word with the memory except names, and one in everyday words, which
may share a word or two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_suffix(".txt")
INDENT = "    "

WORD = re.compile(r"[^\W\d_]+")
NAMES = frozenset(WORD.findall("mia oskar marek ilse priya felix bogdan hanna biscuit pepper armor ferries"))
# Words that occur in questions about every subject.
SMALL = frozenset(
    WORD.findall(
        "a about after all am an and any are as at be because been before both but by can could did do does down "
        "during each every first for from get gets go goes had has have he her him his how i if in into is it its "
        "like may me more most much must my need never no nobody not now of off often old on one only onto or our "
        "out over should since so some someone something take takes than that the their them then there these "
        "they this to too two until up us use usual usually want wants was we were what when where which while "
        "who whom whose why will with without would you"
    )
)
STEM = 5  # letters of a word that are compared, so that "photo" and "photos" are the same word


class Note(NamedTuple):
    """A memory and the questions that it answers."""

    key: str
    text: str
    questions: list[str]

    def shared(self, question: str) -> set[str]:
        """Return the content words of the question that the memory or its key has too, without names."""
        return content(question) & content(f"{self.key} {self.text}")


def content(text: str) -> set[str]:
    """Return the first letters of each content word of a text."""
    return {word[:STEM] for word in WORD.findall(text.lower()) if len(word) > 1 and word not in SMALL | NAMES}


def notes() -> list[Note]:
    found: list[Note] = []
    for line in FILE.read_text().splitlines():
        if line.startswith(INDENT):
            found[-1].questions.append(line.strip())
        elif line and not line.startswith("#"):
            key, text = line.split(": ", 1)
            found.append(Note(key, text, []))
    return found
