"""The agents of the servers that proofs attack: `holdfast serve` loads this file, and the proofs import it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from holdfast import Agent, tool
from holdfast.models.base import ModelRequest
from holdfast.testing import call, error
from holdfast.tools.files import read_file


@tool(approval="always")
def spend(cents: int) -> str:
    """Spend money, if a person agrees."""
    return f"spent {cents}"


@tool(approval="second_person")
def transfer(cents: int) -> str:
    """Transfer money, if another person agrees."""
    return f"transferred {cents}"


@tool
def stumble(over: str) -> str:
    """Fail, and say over what."""
    raise RuntimeError(f"could not get past {over}")


def answer(request: ModelRequest) -> Any:
    """What it is asked for, by the first word; nothing that it is told comes back."""
    last = request.messages[-1]
    word, _, rest = last.text.partition(" ")
    if last.role != "user":
        return "That is done."
    if word == "spend":
        return call("spend", {"cents": 5}, id=uuid4().hex)
    if word == "transfer":
        return call("transfer", {"cents": 500}, id=uuid4().hex)
    if word == "stumble":
        return call("stumble", {"over": rest})
    if word == "read":
        return call("read_file", {"path": rest})
    if word == "fail":
        return error(rest)
    if word == "crash":
        raise RuntimeError(rest)
    return "I have heard you, and have nothing to add."


helper = Agent(name="helper", provider="scripted", script=answer, tools=[spend, transfer, stumble, read_file])
