"""What an assistant might keep about Tessa, who does not exist, and what she asks in other words.

`retrieval_questions.txt` has a key and a memory in a line, and below it the questions that this memory answers and no
other one does. Most have two: one that has no word in common with it but a name, and one as asked on an ordinary day,
which may share a word or two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_suffix(".txt")
INDENT = "    "

WORD = re.compile(r"[^\W\d_]+")
NAMES = frozenset(WORD.findall("mia oskar marek ilse priya felix bogdan hanna biscuit pepper armor ferries"))
# Words that questions are made of, whatever they are about.
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
STEM = 5  # letters: enough to see that photo and photos are one word


class Note(NamedTuple):
    """A memory and the questions it answers."""

    key: str
    text: str
    questions: list[str]

    def shared(self, question: str) -> set[str]:
        """The words that say what the question is about and that the memory or its key has too, names left out."""
        return content(question) & content(f"{self.key} {self.text}")


def content(text: str) -> set[str]:
    """The beginnings of the words that say what a text is about."""
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
