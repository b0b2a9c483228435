"""A shop whose clerk needs no model: `holdfast serve examples/shop.py --open`, then order something.

The clerk puts the goods aside, charges for them, and says so. Charging takes a while, and before that while is over the
bank tells nobody that it has taken the money: whoever dies in between does not know. But the bank knows a payment by
its key, and holdfast gives a call the same key however often it has to run.
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
SECONDS = float(os.environ.get("SHOP_SECONDS", "1"))  # that a payment takes


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
    """The bank, which is not ours: a file for each payment, made once."""
    payment = FOLDER / f"payment-{sha256(key.encode()).hexdigest()[:32]}"
    try:
        payment.open("x").write(order)
    except FileExistsError:
        pass  # it has this payment already


def _note(what: str, order: str) -> None:
    """A line for each time that a tool runs, in whichever process."""
    line = json.dumps({"tool": what, "order": order, "process": os.getpid()}) + "\n"
    with (FOLDER / "ran.jsonl").open("a") as file:
        file.write(line)  # in one piece: it is short, and the file is opened for appending


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
