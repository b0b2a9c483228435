"""What a model is told about a function, and what it may send."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, Optional, Required, TypedDict, TypeVar

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import BadArguments, InvalidTool
from holdfast.log import codec
from holdfast.tools.tool import ToolContext, tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Item:
    """A thing to order."""

    name: str
    count: int = 1


class Address(TypedDict, total=False):
    street: Required[str]
    city: str


class Country(Address):
    code: str
    dial: NotRequired[int]


class NewAddress(typing_extensions.TypedDict):
    street: str


class Tree(BaseModel):
    title: str
    kids: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]
    tricks: list[str]


T = TypeVar("T")


class Opaque(Generic[T]):
    pass


ITEM = {
    "type": "object",
    "description": "A thing to order.",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
    "required": ["name"],
    "additionalProperties": False,
}
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
    "required": ["street"],
    "additionalProperties": False,
}


def schema_of(hint: Any) -> dict[str, Any]:
    def f(x):  # type: ignore[no-untyped-def]
        pass

    f.__annotations__ = {"x": hint}
    found = tool(f).parameters
    x: dict[str, Any] = found["properties"].pop("x")
    assert found == {"type": "object", "properties": {}, "required": ["x"], "additionalProperties": False} | (
        {"$defs": found["$defs"]} if "$defs" in found else {}
    )
    return x


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (date, {"type": "string", "format": "date"}),
        (Path, {"type": "string", "format": "path"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045 - users write it
        (int | list[str], {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "const": "a"}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (Annotated[str, "the name"], {"type": "string", "description": "the name"}),
        (Annotated[str, typing_extensions.Doc("the name")], {"type": "string", "description": "the name"}),
        (
            Annotated[int, Field(ge=1, le=9, description="a digit"), "not this"],
            {"type": "integer", "minimum": 1, "maximum": 9, "description": "a digit"},
        ),
        (Item, ITEM),
        (list[Item], {"type": "array", "items": ITEM}),
        (Item | None, {"anyOf": [ITEM, {"type": "null"}]}),
        (Address, ADDRESS),
        (list[Address], {"type": "array", "items": ADDRESS}),
        (dict[str, Address] | None, {"anyOf": [{"type": "object", "additionalProperties": ADDRESS}, {"type": "null"}]}),
        (
            Country,
            {
                "type": "object",
                "properties": {**ADDRESS["properties"], "code": {"type": "string"}, "dial": {"type": "integer"}},  # type: ignore[dict-item]
                "required": ["street", "code"],
                "additionalProperties": False,
            },
        ),
        (
            NewAddress,
            {
                "type": "object",
                "properties": {"street": {"type": "string"}},
                "required": ["street"],
                "additionalProperties": False,
            },
        ),
        (
            Annotated[Cat | Dog, Field(discriminator="kind")],
            {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"type": "string", "const": "cat"}, "lives": {"type": "integer"}},
                        "required": ["kind", "lives"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {
                            "kind": {"type": "string", "const": "dog"},
                            "tricks": {"type": "array", "items": {"type": "string"}},
                        },
                        "required": ["kind", "tricks"],
                        "additionalProperties": False,
                    },
                ]
            },
        ),
    ],
    ids=str,
)
def test_a_hint_becomes_this_schema(hint: Any, expected: dict[str, Any]) -> None:
    assert schema_of(hint) == expected


def test_only_a_recursive_definition_stays_a_definition() -> None:
    @tool
    def plant(first: Tree, second: Tree, item: Item) -> None:
        pass

    tree = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []},
        },
        "required": ["title"],
        "additionalProperties": False,
    }
    assert plant.parameters["$defs"] == {"Tree": tree}
    assert plant.parameters["properties"] == {
        "first": {"$ref": "#/$defs/Tree"},
        "second": {"$ref": "#/$defs/Tree"},
        "item": ITEM,
    }


def google(name: str, count: int = 3, color: Color = Color.RED) -> str:
    """Order something.

    Only what is in stock.

    Args:
        name: What to order.
        count (int): How many, over
            two lines.

    Returns:
        A receipt.
    """
    return f"{name} {count} {color}"


def numpy(name: str, count: int = 3, color: Color = Color.RED) -> str:
    """Order something.

    Only what is in stock.

    Parameters
    ----------
    name : str
        What to order.
    count : int
        How many, over
        two lines.

    Returns
    -------
    str
        A receipt.
    """
    return f"{name} {count} {color}"


def rest(name: str, count: int = 3, color: Color = Color.RED) -> str:
    """Order something.

    Only what is in stock.

    :param name: What to order.
    :param count: How many, over
        two lines.
    :returns: A receipt.
    """
    return f"{name} {count} {color}"


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_docstrings_describe_the_tool_and_its_parameters(function: Any) -> None:
    found = tool(function)
    assert found.description == "Order something.\n\nOnly what is in stock."
    assert found.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "What to order."},
            "count": {"type": "integer", "description": "How many, over\ntwo lines.", "default": 3},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def test_a_function_without_anything_takes_an_empty_object() -> None:
    @tool
    def ping() -> str:
        return "pong"

    assert ping.description == ""
    assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.validate("") == ping.validate("{}") == ping.validate({}) == {}


def test_any_name_may_be_a_parameter() -> None:
    @tool
    def odd(model_config: int, schema: int, _x: int, copy: int, self_: int, json: int = 0) -> None:
        pass

    given = {"model_config": 1, "schema": 2, "_x": 3, "copy": 4, "self_": 5}
    assert odd.parameters["required"] == list(given)
    assert odd.validate(given) == given


def test_a_default_that_json_cannot_hold_is_left_out() -> None:
    @tool
    def f(x: float = float("inf"), y: Any = object) -> None:
        pass

    assert f.parameters["properties"] == {"x": {"type": "number"}, "y": {}}
    assert f.validate({}) == {}


def test_the_functions_own_defaults_hold_for_what_the_model_left_out() -> None:
    @tool
    def f(x: list[int] = [1], y: Annotated[int, Field(default=7)] = 8) -> Any:  # noqa: B006
        return x, y

    assert f.validate({"y": 3}) == {"y": 3}
    assert f(**f.validate({})) == ([1], 8)


def test_the_context_is_not_the_models_to_give() -> None:
    @tool
    def f(x: int, ctx: ToolContext) -> None:
        pass

    @tool
    def g(ctx: ToolContext | None = None, *, x: int) -> None:
        pass

    assert list(f.parameters["properties"]) == list(g.parameters["properties"]) == ["x"]
    assert f.wants_context
    assert g.wants_context
    with pytest.raises(BadArguments, match="there is no argument 'ctx'; the arguments are: x"):
        f.validate({"x": 1, "ctx": {}})


def test_what_cannot_be_described_is_refused_with_its_name() -> None:
    def many(*args: int) -> None: ...
    def loose(**kwargs: int) -> None: ...
    def placed(x: int, /) -> None: ...
    def opaque(x: int, y: Opaque[int]) -> None: ...
    def fields(x: int, z: Any = Field(default=3)) -> None: ...  # noqa: B008
    def factory(x: Annotated[list[int], Field(default_factory=list)] = []) -> None: ...  # noqa: B006
    def twice(a: ToolContext, b: ToolContext) -> None: ...
    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    cases: list[tuple[Any, str]] = [
        (many, r"tool 'many': '\*args' cannot be described to a model: name each argument"),
        (loose, r"'\*\*kwargs' cannot"),
        (placed, "'x' cannot be described .* with no '/'"),
        (opaque, "tool 'opaque': the type of 'y', .*Opaque.*, cannot be described to a model: use str"),
        (fields, r"write z: Annotated\[..., Field"),
        (factory, "cannot specify both default and default_factory"),
        (twice, "takes a ToolContext twice: 'a' and 'b'"),
        (unknown, "'Nowhere' is not defined"),
        (dict.get, "does not tell its parameters|cannot be described"),
    ]
    for function, text in cases:
        with pytest.raises(InvalidTool, match=text):
            tool(function)


def test_arguments_are_converted() -> None:
    @tool
    def f(
        color: Color, item: Item, when: date, where: Address, tree: Tree, n: int, pet: Cat | Dog, tags: set[str]
    ) -> None: ...

    text = """{"color": "blue", "item": {"name": "tea", "count": "2"}, "when": "2026-01-02", "where": {"street": "x"},
               "tree": {"title": "a", "kids": [{"title": "b"}]}, "n": "5", "pet": {"kind": "dog", "tricks": []},
               "tags": ["a"]}"""
    expected = {
        "color": Color.BLUE,
        "item": Item("tea", 2),
        "when": date(2026, 1, 2),
        "where": {"street": "x"},
        "tree": Tree(title="a", kids=[Tree(title="b")]),
        "n": 5,
        "pet": Dog(kind="dog", tricks=[]),
        "tags": {"a"},
    }
    assert f.validate(text) == f.validate(codec.parse(text)) == expected


NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


@tool
def order(
    name: str, items: list[Item], count: int = 1, where: Address | None = None, pet: Cat | Dog | None = None
) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"items": []}, ["'name' is missing"]),
        ({"name": 5, "items": []}, ["'name': Input should be a valid string, not 5"]),
        (
            {"name": "x", "items": [], "cuont": 1},
            ["there is no argument 'cuont'; the arguments are: name, items, count, where, pet"],
        ),
        (
            {"name": "x", "items": [{"name": "y"}, {"count": "z"}]},
            ["'items[1].name' is missing", f"'items[1].count': {NO_INTEGER}, not 'z'"],
        ),
        ({"name": "x", "items": {"a": 1}}, ["'items': Input should be a valid array, not {'a': 1}"]),
        ({"name": "x", "items": [], "where": {"street": "a", "town": "b"}}, ["'where.town' is not known there"]),
        (
            {"name": "x", "items": [], "pet": {"kind": "cat"}},
            [
                "'pet.lives' (as Cat) is missing",
                "'pet.kind' (as Dog): Input should be 'dog', not 'cat'",
                "'pet.tricks' (as Dog) is missing",
            ],
        ),
        (
            {"name": "x" * 200, "items": 3, "count": "y" * 200},
            ["'items': Input should be a valid array, not 3", f"'count': {NO_INTEGER}, not '{'y' * 79}…"],
        ),
        ("[1]", ["they are a JSON object, not a list"]),
        ("null", ["they are a JSON object, not a NoneType"]),
        ('{"name": "a", "name": "b"}', ["an object names the same key twice: which one is meant?"]),
        ('{"name": "x"', ["not JSON: Expecting ',' delimiter: line 1 column 13 (char 12)"]),
        ("[" * 100_000, ["nested deeper than 64 levels"]),
        ({"name": b"x"}, ["bytes are not JSON: keep them in a message part, File(data=...) or Image(data=...)"]),
    ],
)
def test_bad_arguments_say_which_and_why(arguments: Any, problems: list[str]) -> None:
    with pytest.raises(BadArguments) as caught:
        order.validate(arguments)
    assert list(caught.value.problems) == problems
    assert str(caught.value) == f"bad arguments for order: {'; '.join(problems)}"


def test_many_problems_are_listed_in_part() -> None:
    with pytest.raises(BadArguments) as caught:
        order.validate({"name": "x", "items": [{} for _ in range(100)]})
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and 90 more"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.one_of(st.text(), st.dictionaries(st.sampled_from(["name", "items", "count", "where", "pet", "x"]), JSON)))
def test_any_value_is_either_good_or_bad_arguments(arguments: Any) -> None:
    try:
        found = order.validate(arguments)
    except BadArguments as error:
        codec.encode(str(error))
    else:
        assert set(found) <= {"name", "items", "count", "where", "pet"}


def test_partials_and_callable_objects_are_functions_too() -> None:
    class Greeter:
        def __call__(self, name: str) -> str:
            """Greet."""
            return f"hello {name}"

    def scale(factor: int, x: int) -> int:
        return factor * x

    greet, double = tool(name="greet")(Greeter()), tool(name="double")(partial(scale, 2))
    assert list(greet.parameters["properties"]) == ["name"]
    assert greet(name="a") == "hello a"
    assert double(**double.validate({"x": 4})) == 8
