"""The workload: turns of four messages with 500-byte texts, and the audit that looks for them in a store.

A tag `{writer/turn/part}` in the text names the place of a message, so the audit finds lost, doubled and torn turns in
any format of storage.
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

Plain = dict[str, Any]  # a message in the form of OpenAI

PARTS = ("ask", "call", "result", "reply")
TEXT = 500
QUERY = 60
_TAG = re.compile(r"\{([\w-]+)/(\d+)/(ask|call|result|reply)\}")


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Return words and weights, distributed as in a language: few are frequent, most are rare, some are not ASCII."""
    rng = random.Random("vocabulary")
    syllables = [a + b for a in ("st", "tr", *"bcdfglmnprstvw") for b in ("ai", *"aeioué")]
    words = ["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 4)))) for _ in range(4000)]
    return words, list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))


def prose(rng: random.Random, size: int, start: str = "") -> str:
    """Return a text of exactly `size` bytes that begins with `start`."""
    words, weights = _vocabulary()
    text = start + " ".join(rng.choices(words, cum_weights=weights, k=size // 3))
    data = text.encode()[:size].decode(errors="ignore")
    return data + "." * (size - len(data.encode()))


def turn(writer: str, number: int) -> list[Plain]:
    """Return one turn: the user asks, the assistant calls a tool, the tool answers, the assistant replies."""
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
    """Yield `count` messages of a history that is not audited: a thousand different messages, repeated."""
    return itertools.islice(itertools.cycle(_pool()), count)


def plain_texts(count: int) -> list[Plain]:
    """Return `count` messages with one 500-byte text each, all different."""
    rng = random.Random("texts")
    return [{"role": ("user", "assistant")[i % 2], "content": prose(rng, TEXT)} for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit of the turns whose append was acknowledged."""

    acknowledged: int
    lost: int  # missing messages of acknowledged turns
    doubled: int  # messages that are stored more than once
    torn: int  # turns that are stored in part, out of order, or with other messages in between
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
    turns = set(acknowledged)
    lost = sum(len(PARTS) - len({part for _, part in places.get(key, [])}) for key in turns)
    doubled = sum(len(found) - len({part for _, part in found}) for found in places.values())
    torn = 0
    for found in places.values():
        first = found[0][0]
        torn += found != [(first + offset, part) for offset, part in enumerate(PARTS)]
    return Audit(acknowledged=len(turns), lost=lost, doubled=doubled, torn=torn, errors=errors)
