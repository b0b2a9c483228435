"""What is stored: turns of four messages with 500-byte texts, and the audit that finds them again.

A tag `{writer/turn/part}` names the place of a message, so an audit can tell what was lost, doubled or torn whatever
shape a store gave it.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

Plain = dict[str, Any]  # a message as OpenAI writes it

PARTS = ("ask", "call", "result", "reply")
TEXT = 500
QUERY = 60
_TAG = re.compile(r"\{([\w-]+)/(\d+)/(ask|call|result|reply)\}")


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Words as unequal as those of a language: few are frequent, most are rare, some are not ASCII."""
    rng = random.Random("vocabulary")
    syllables = [a + b for a in ("st", "tr", *"bcdfglmnprstvw") for b in ("ai", *"aeioué")]
    words = ["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 4)))) for _ in range(4000)]
    return words, list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))


def prose(rng: random.Random, size: int, start: str = "") -> str:
    """Text of exactly `size` bytes that begins with `start`."""
    words, weights = _vocabulary()
    text = start + " ".join(rng.choices(words, cum_weights=weights, k=size // 3))
    data = text.encode()[:size].decode(errors="ignore")
    return data + "." * (size - len(data.encode()))


def turn(writer: str, number: int) -> list[Plain]:
    """One exchange: the user asks, the assistant calls a tool, the tool answers, the assistant replies."""
    rng = random.Random(f"{writer}/{number}")
    ask, query, result, reply = (
        prose(rng, QUERY if part == "call" else TEXT, f"{{{writer}/{number}/{part}}} ") for part in PARTS
    )
    call = f"call_{writer}_{number}"
    arguments = json.dumps({"query": query, "limit": 5}, ensure_ascii=False)
    function = {"name": "search_orders", "arguments": arguments}
    return [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call, "content": result},
        {"role": "assistant", "content": reply},
    ]


@cache
def _pool() -> list[Plain]:
    return [message for number in range(250) for message in turn("past", number)]


def history(count: int) -> Iterator[Plain]:
    """`count` messages of a past that nobody audits: a thousand different ones, again and again."""
    return itertools.islice(itertools.cycle(_pool()), count)


def plain_texts(count: int) -> list[Plain]:
    """`count` messages of one 500-byte text each, all different."""
    rng = random.Random("texts")
    return [{"role": ("user", "assistant")[i % 2], "content": prose(rng, TEXT)} for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What became of the turns that writers were told are stored."""

    acknowledged: int
    lost: int  # messages of an acknowledged turn that are not there
    doubled: int  # messages that are there more than once
    torn: int  # turns that are there in part, out of order, or with something in between
    errors: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.torn or self.errors)

    def __str__(self) -> str:
        return f"{self.lost} lost, {self.doubled} doubled, {self.torn} torn, {self.errors} errors"


def audit(stored: Iterable[str], acknowledged: Iterable[tuple[str, int]], errors: int) -> Audit:
    """Compare the texts of a session, in order, with the (writer, turn) pairs that were acknowledged."""
    places: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for place, text in enumerate(stored):
        for writer, number, part in _TAG.findall(text):
            places.setdefault((writer, int(number)), []).append((place, part))
    told = set(acknowledged)
    lost = sum(len(PARTS) - len({part for _, part in places.get(key, [])}) for key in told)
    doubled = sum(len(found) - len({part for _, part in found}) for found in places.values())
    torn = 0
    for found in places.values():
        first = found[0][0]
        torn += found != [(first + offset, part) for offset, part in enumerate(PARTS)]
    return Audit(acknowledged=len(told), lost=lost, doubled=doubled, torn=torn, errors=errors)
