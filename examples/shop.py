"""A shop whose clerk needs no model: `holdfast serve examples/shop.py --open`, then order something.

The clerk reserves the goods, charges for them, and confirms the order. Charging takes a while, and the bank confirms
the payment only at the end: a process that dies in between does not know whether the bank took the money. But the bank
recognizes a payment by its key, and holdfast gives a call the same key every time it runs.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast import Agent, ToolContext, tool
from holdfast.log.messages import ToolResult
from holdfast.models import ModelRequest
from holdfast.testing import call

FOLDER = Path(os.environ.get("SHOP_FOLDER") or tempfile.mkdtemp(prefix="holdfast-shop-"))
SECONDS = float(os.environ.get("SHOP_SECONDS", "1"))  # duration of a payment


@tool(idempotent=True)
def reserve(order: str) -> str:
    """Put the goods of an order aside."""
    _note("reserve", order)
    return f"{order}: reserved"


@tool(idempotent=True)
def charge(order: str, ctx: ToolContext) -> str:
    """Charge for an order. The same key is charged once, so this may be called again."""
    _pay(order, ctx.idempotency_key)
    _note("charge", order)
    time.sleep(SECONDS)
    return f"{order}: paid"


def _pay(order: str, key: str) -> None:
    """Pay at the bank, an external system: it creates one file for each key, once."""
    payment = FOLDER / f"payment-{sha256(key.encode()).hexdigest()[:32]}"
    try:
        payment.open("x").write(order)
    except FileExistsError:
        pass  # the bank has this payment already


def _note(what: str, order: str) -> None:
    """Append a line to a file that counts the runs of the tools in all processes."""
    line = json.dumps({"tool": what, "order": order, "process": os.getpid()}) + "\n"
    with (FOLDER / "ran.jsonl").open("a") as file:
        file.write(line)  # one write of a short line to a file in append mode, so lines of two processes do not mix


def _clerk(request: ModelRequest) -> Any:  # noqa: ANN401 - a reply of a scripted model
    asked = max(at for at, message in enumerate(request.messages) if message.role == "user")
    order = request.messages[asked].text
    done = [part for message in request.messages[asked:] for part in message.parts if isinstance(part, ToolResult)]
    if not done:
        return call("reserve", {"order": order})
    if len(done) == 1:
        return call("charge", {"order": order})
    return f"Thank you. Your goods are put aside and paid for, and this is what I have in my book: {done[-1].content}."


clerk = Agent(name="clerk", provider="scripted", script=_clerk, tools=[reserve, charge])
