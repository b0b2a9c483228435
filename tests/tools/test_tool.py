"""Making tools, collecting them, calling them, and what becomes of their results."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import threading
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from holdfast.errors import AgentError, InvalidTool, ToolError
from holdfast.log import codec
from holdfast.tools.tool import Interrupt, Tool, ToolContext, as_tools, clip, render, tool


class Receipt(BaseModel):
    order: str
    cents: int
    paid: date = date(2026, 1, 2)


@dataclass
class Point:
    x: int
    y: Any = None


class Color(enum.Enum):
    RED = "red"


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool(idempotent=True)
    def orders(self, user_id: str) -> str:
        """Get orders."""
        return f"{self.name} has none for {user_id}"

    def plain(self, x: int) -> int:
        return x


@tool
def get_user_orders(user_id: str) -> str:
    """Get orders for a user."""
    return f"orders of {user_id}"


@tool(idempotent=True, timeout=30, approval="always", max_result_bytes=262_144)
async def charge(order_id: str, cents: int, ctx: ToolContext) -> Receipt:
    """Charge."""
    return Receipt(order=f"{order_id} {ctx.idempotency_key}", cents=cents)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_bare_decorator_keeps_the_function_callable() -> None:
    assert isinstance(get_user_orders, Tool)
    assert get_user_orders("u") == get_user_orders(user_id="u") == "orders of u"
    assert (get_user_orders.name, get_user_orders.description) == ("get_user_orders", "Get orders for a user.")
    assert (get_user_orders.is_async, get_user_orders.idempotent, get_user_orders.wants_context) == (False,) * 3
    assert (get_user_orders.timeout, get_user_orders.approval) == (None, None)
    assert get_user_orders.max_result_bytes == 262_144
    assert str(inspect.signature(get_user_orders)) == "(user_id: 'str') -> 'str'"
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_user_orders.name = "other"  # type: ignore[misc]


async def test_options_are_kept_and_the_context_is_filled_in() -> None:
    assert charge.is_async
    assert charge.idempotent
    assert charge.wants_context
    assert (charge.timeout, charge.approval) == (30, "always")
    kwargs = charge.validate('{"order_id": "o", "cents": 5}')
    assert await charge.start(kwargs, ToolContext(idempotency_key="k")) == Receipt(order="o k", cents=5)
    assert get_user_orders.start({"user_id": "u"}, ToolContext()) == "orders of u"


def test_name_and_description_can_be_given() -> None:
    found = tool(name="sum", description="Sums.")(add)
    assert (found.name, found.description) == ("sum", "Sums.")


def test_approval_is_kept_as_it_was_given() -> None:
    def is_costly(arguments: dict[str, Any]) -> bool:
        return bool(arguments["a"] > 10)

    assert tool(approval=is_costly)(add).approval is is_costly
    assert (charge.approval, get_user_orders.approval) == ("always", None)


def test_a_decorated_method_belongs_to_its_object() -> None:
    shop = Shop("corner")
    assert shop.orders("u") == "corner has none for u"
    assert list(shop.orders.parameters["properties"]) == ["user_id"]
    assert shop.orders.idempotent
    [found, plain] = as_tools([shop.orders, shop.plain])
    assert found.start(found.validate({"user_id": "u"}), ToolContext()) == "corner has none for u"
    assert plain.start(plain.validate({"x": 3}), ToolContext()) == 3
    with pytest.raises(InvalidTool, match=r"'orders' is a method: .*shop\.orders"):
        as_tools([Shop.orders])


def test_tools_are_collected_from_anything() -> None:
    class Server:
        def tools(self) -> list[Tool]:
            return [tool(name="served")(add)]

    found = as_tools([add, [get_user_orders, (charge, [])], {shop_hours}, None, Server(), iter([tool(name="c")(add)])])
    assert [item.name for item in found] == ["add", "get_user_orders", "charge", "shop_hours", "served", "c"]
    assert as_tools(add)[0].function is add
    assert as_tools(None) == as_tools([]) == []


def shop_hours() -> str:
    return "9 to 5"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTool, match="two tools are named 'add'"):
        as_tools([add, [tool(add)]])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tool(name="with space")(add), "'with space' is no name for a tool"),
        (lambda: tool(name="x" * 65)(add), "1 to 64 letters"),
        (lambda: tool(lambda x: x), "a lambda has no name: write it with def"),
        (lambda: tool(timeout=0)(add), "timeout=0 must be"),
        (lambda: tool(timeout=float("nan"))(add), "timeout=nan must be"),
        (lambda: tool(approval="sometimes")(add), "approval is 'always', 'second_person'"),  # type: ignore[call-overload]
        (lambda: tool(max_result_bytes=1)(add), "max_result_bytes must be at least 128"),
        (lambda: tool(get_user_orders), "is a tool already"),
        (lambda: tool(Receipt), "made from a function"),
        (lambda: tool(3), "made from a function, not from 3"),  # type: ignore[call-overload]
        (lambda: as_tools("add"), "made from a function, not from 'add'"),
        (lambda: as_tools([{"name": "x"}]), "made from a function"),
        (lambda: tool(generate), "is a generator"),
        (lambda: tool(generate_async), "is a generator"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidTool, match=text) as caught:
        make()
    assert isinstance(caught.value, AgentError)
    assert isinstance(caught.value, ValueError)


def generate() -> Any:
    yield 1


async def generate_async() -> Any:
    yield 1


def test_the_context_shows_what_it_was_given() -> None:
    flag = threading.Event()
    told: list[str] = []
    ctx = ToolContext(
        session="s", state={"a": 1}, work_dir=Path("w"), idempotency_key="k", cancelled=flag, on_progress=told.append
    )
    assert (ctx.session, ctx.state, ctx.work_dir, ctx.idempotency_key) == ("s", {"a": 1}, Path("w"), "k")
    assert not ctx.cancelled
    flag.set()
    assert ctx.cancelled
    assert ToolContext(cancelled=lambda: True).cancelled
    ctx.progress("half \ud800")
    assert told == ["half \ufffd"]


def test_an_interrupt_carries_its_payload() -> None:
    assert Interrupt({"ask": "sure?"}).payload == {"ask": "sure?"}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


class Name(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is\0", "as it is\0"),
        (Name("name"), "name"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("", ""),
        (None, "None"),
        (5, "5"),
        (True, "True"),
        (Decimal("1.50"), "1.50"),
        (Color.RED, "red"),
        ({"a": [1, None, True], "ü": "\udc00"}, '{"a": [1, null, true], "ü": "\ufffd"}'),
        ([1, "x", Color.RED, date(2026, 1, 2)], '[1, "x", "red", "2026-01-02"]'),
        ((1, 2), "[1, 2]"),
        ({3}, "[3]"),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
        ({1: "one"}, '{"1": "one"}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (CYCLE, "[[...]]"),
        (Receipt(order="o", cents=1), '{"order": "o", "cents": 1, "paid": "2026-01-02"}'),
        ([Point(1, Point(2, b"xyz"))], '[{"x": 1, "y": {"x": 2, "y": "(3 bytes)"}}]'),
        (Point(1, {"p": Path("a/b")}), '{"x": 1, "y": {"p": "a/b"}}'),
    ],
    ids=repr,
)
def test_a_result_becomes_text(result: object, text: str) -> None:
    found = render(result)
    assert type(found) is str
    assert found == text


@pytest.mark.parametrize("result", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_are_refused_with_a_hint(result: object) -> None:
    with pytest.raises(ToolError, match="returned 3 bytes, which no model can read: return text, or a file's path"):
        render(result)


@given(
    st.text(st.characters() | st.characters(categories=["Cs"])) | st.lists(st.text(st.characters(categories=["Cs"])))
)
def test_every_result_is_text_that_the_log_takes(result: object) -> None:
    codec.encode(render(result))


@given(st.text(), st.integers(128, 1000))
def test_what_fits_is_not_cut(text: str, limit: int) -> None:
    if len(text.encode()) <= limit:
        assert clip(text, limit) == (text, None)


@given(st.text(min_size=40).map(lambda text: text * 10), st.integers(64, 200))
def test_what_is_cut_stays_valid_and_names_its_size(text: str, limit: int) -> None:
    size = len(text.encode())
    shown, whole = clip(text, limit)
    if size <= limit:
        return
    assert whole == text.encode()
    assert len(shown.encode()) <= limit
    kept, _, marker = shown.rpartition("\n[cut: ")
    assert marker == f"{len(kept.encode())} of {size} bytes are shown]"
    assert text.startswith(kept)


def test_the_cut_uses_the_room_there_is() -> None:
    shown, whole = clip("é" * 1000, 200)
    assert shown == "é" * 82 + "\n[cut: 164 of 2000 bytes are shown]"
    assert whole == "é".encode() * 1000
