"""Replies are checked against the whole of JSON Schema, and schemas before a model is asked."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, Field

from holdfast import Agent
from holdfast.errors import BadOutput, InvalidArgument, SchemaValidationError
from holdfast.models.base import ModelRequest
from holdfast.schema.output import OutputShape
from holdfast.schema.validation import compile_schema

S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741 - types of JSON
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "n": I}, "required": ["n"]}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "if": {"properties": {"kind": {"const": "cat"}}},
    "then": {"required": ["lives"]},
    "else": {"required": ["tricks"]},
}


def check_value(schema: dict[str, Any], value: object) -> Any:
    return OutputShape(schema).read(orjson.dumps(value).decode())


# Every keyword of draft 2020-12 that asserts something: a value that fits, one that does not, and what is said of it.
KEYWORDS: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"type": "integer"}, 3, "3", "the reply is not of type integer"),
    ({"type": "integer"}, 3.0, True, "the reply is not of type integer"),
    ({"type": ["string", "null"]}, None, 1, 'the reply is not of type ["string","null"]'),
    ({"enum": ["a", 1]}, 1, "b", 'the reply is not one of ["a",1]'),
    ({"enum": [1]}, 1, True, "the reply is not one of [1]"),
    ({"const": {"a": 1}}, {"a": 1}, {"a": 2}, 'the reply is not {"a":1}'),
    ({"minimum": 1}, 1, 0, "the reply is less than 1"),
    ({"maximum": 9}, 9, 9.5, "the reply is more than 9"),
    ({"exclusiveMinimum": 1}, 2, 1, "the reply is not more than 1"),
    ({"exclusiveMaximum": 9}, 8, 9, "the reply is not less than 9"),
    ({"multipleOf": 0.01}, 19.99, 19.999, "the reply is not a multiple of 0.01"),
    ({"multipleOf": 3}, 9, 10, "the reply is not a multiple of 3"),
    ({"minLength": 2}, "éé", "é", "the reply has fewer than 2 characters"),
    ({"maxLength": 3}, "abc", "abcd", "the reply has more than 3 characters"),
    ({"pattern": "^a+$"}, "aa", "ab", "the reply does not match the pattern ^a+$"),
    ({"items": I}, [1, 2], [1, "x"], "the reply[1] is not of type integer"),
    ({"prefixItems": [S, I], "items": False}, ["a", 1], ["a", 1, 2], "the reply: Expected at most 2 items but found 1"),
    ({"minItems": 1}, [1], [], "the reply has fewer than 1 items"),
    ({"maxItems": 1}, [1], [1, 2], "the reply has more than 1 items"),
    ({"uniqueItems": True}, [1, True], [1, 1], "the reply has the same item twice"),
    ({"contains": I}, ["a", 1], ["a"], 'the reply has no item that fits {"type":"integer"}'),
    ({"contains": I, "minContains": 2}, [1, 2], [1], "the reply: Too few items match"),
    ({"contains": I, "maxContains": 1}, [1], [1, 2], "the reply: Too many items match"),
    ({"properties": {"n": {"minimum": 1}}}, {"n": 1}, {"n": 0}, "the reply.n is less than 1"),
    ({"required": ["a", "b", "c"]}, {"a": 1, "b": 2, "c": 3}, {"a": 1}, "the reply lacks 'b', 'c'"),
    ({"additionalProperties": False, "properties": {"a": S}}, {"a": ""}, {"z": 1}, "the reply.z is not allowed"),
    ({"properties": {"z": False}}, {"a": ""}, {"z": 1}, "the reply.z is not allowed"),
    ({"additionalProperties": I}, {"a": 1}, {"a": "x"}, "the reply.a is not of type integer"),
    ({"patternProperties": {"^n_": I}}, {"n_a": 1, "b": ""}, {"n_a": ""}, "the reply.n_a is not of type integer"),
    (
        {"patternProperties": {"^n_": I}, "additionalProperties": False},
        {"n_a": 1},
        {"b": 1},
        "the reply.b is not allowed",
    ),
    ({"propertyNames": {"maxLength": 2}}, {"ab": 1}, {"abc": 1}, "the reply has more than 2 characters"),
    ({"minProperties": 1}, {"a": 1}, {}, "the reply has fewer than 1 properties"),
    ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}, "the reply has more than 1 properties"),
    ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}, "the reply: 'b' is a dependency of 'a'"),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 1}, {"a": 1}, "the reply lacks 'b'"),
    ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": S}}]}, {"a": ""}, {"b": 1}, "'b' was unexpected"),
    ({"unevaluatedItems": False, "prefixItems": [S]}, ["a"], ["a", 1], "the reply has items that the schema does not"),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2, 4, "the reply is more than 3"),
    ({"anyOf": [S, I]}, 1, None, "the reply"),
    ({"oneOf": [S, I]}, "a", 1.5, "the reply"),
    ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, 0, 2, "the reply fits more than one of the 2 alternatives"),
    ({"not": S}, 1, "a", 'the reply fits a schema that it must not fit: {"type":"string"}'),
    (PET, {"kind": "cat", "lives": 9}, {"kind": "cat", "tricks": []}, "the reply lacks 'lives'"),
    (PET, {"kind": "dog", "tricks": []}, {"kind": "dog"}, "the reply lacks 'tricks'"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": I}}, 1, "x", "the reply is not of type integer"),
    ({"$ref": "#word", "$defs": {"a": {"$anchor": "word", **I}}}, 1, "x", "the reply is not of type integer"),
    ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", **I}}}, 1, "x", "the reply is not of type integer"),
    (
        {"$id": "https://example.com/s", "items": {"$ref": "https://example.com/s#/$defs/a"}, "$defs": {"a": I}},
        [1],
        ["x"],
        "the reply[0] is not of type integer",
    ),
    (TREE, {"n": 1, "kids": [{"n": 2}]}, {"n": 1, "kids": [{"n": 2}, {}]}, "the reply.kids[1] lacks 'n'"),
    (
        {"$schema": DRAFT_7, "items": [S, I], "additionalItems": False},
        ["a", 1],
        ["a", 1, 2],
        "the reply: Additional items are not allowed",
    ),
    (
        {
            "$schema": DRAFT_7,
            "definitions": {"i": I},
            "items": {"$ref": "#/definitions/i"},
        },
        [1],
        ["a"],
        "the reply[0] is not of type integer",
    ),
    ({"format": "date"}, "2028-02-29", "2026-02-29", "the reply is not a valid date"),
    ({"format": "date-time"}, "2026-01-02T03:04:05.5Z", "2026-13-02T03:04:05Z", "the reply is not a valid date-time"),
    ({"format": "date-time"}, "2026-01-02T03:04:05+01:00", "yesterday", "the reply is not a valid date-time"),
    ({"format": "time"}, "00:00:00Z", "25:00:00Z", "the reply is not a valid time"),
    ({"format": "email"}, "a@b.c", "ab", "the reply is not a valid email"),
    ({"format": "ipv4"}, "1.2.3.4", "1.2.3.400", "the reply is not a valid ipv4"),
    ({"format": "ipv6"}, "::1", "::g", "the reply is not a valid ipv6"),
    ({"format": "uuid"}, "5c0cc3a4-9ba1-4c37-b3c1-7d9f2a3fd66e", "5c0c", "the reply is not a valid uuid"),
    ({"format": "regex"}, "a+", "(", "the reply is not a valid regex"),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad", "problem"), KEYWORDS, ids=[",".join(schema) for schema, *_ in KEYWORDS]
)
def test_every_keyword_is_checked(schema: dict[str, Any], good: Any, bad: Any, problem: str) -> None:
    assert check_value(schema, good) == good
    with pytest.raises(BadOutput) as caught:
        check_value(schema, bad)
    assert problem in str(caught.value)


def test_an_unknown_format_is_a_remark() -> None:
    assert check_value({"format": "color"}, "red") == "red"


def test_a_problem_is_short_and_does_not_quote_the_reply() -> None:
    for schema in ({"type": "string"}, {"anyOf": [S, I]}, {"enum": list(range(10_000))}, {"maxProperties": 0}):
        with pytest.raises(BadOutput) as caught:
            check_value(schema, {"long": "x" * 100_000})
        assert len(str(caught.value)) < 300
        assert "xxx" not in str(caught.value)


# -- the model is asked again ------------------------------------------------------------------------------------------

LIMITS = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "name": {"type": "string", "maxLength": 3}},
    "required": ["n", "name"],
}


def test_a_reply_beyond_a_limit_is_repaired() -> None:
    prompts: list[str] = []

    def good(request: ModelRequest) -> str:
        prompts.extend(message.text for message in request.messages)
        return '{"n": 1, "name": "Ann"}'

    script = ['{"n": 0, "name": "Ann"}', '{"n": 1, "name": "Anna"}', good]
    response = Agent(provider="scripted", script=script).session().json("who?", schema=LIMITS)
    assert response.output == {"n": 1, "name": "Ann"}
    assert "the reply.n is less than 1" in prompts[2]
    assert "the reply.name has more than 3 characters" in prompts[4]


async def test_a_reply_that_stays_beyond_a_limit_fails_the_turn() -> None:
    session = Agent(provider="scripted", script=lambda request: '{"n": 0, "name": "x"}').session()
    with pytest.raises(SchemaValidationError, match="less than 1"):
        await session.json_async("who?", schema=LIMITS)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"tpye": "object"}, "schema= is a JSON Schema, such as"),
        ({}, "schema= is a JSON Schema, such as"),
        ({"type": "objekt"}, "schema.type is not a JSON Schema"),
        (
            {"properties": {"n": {"type": ["integer", "int"]}}},
            r"properties.n.type\[1\] is not a JSON Schema: 'int'",
        ),
        ({"properties": []}, "schema.properties is not a JSON Schema"),
        ({"properties": {"n": 7}}, "schema.properties.n is not a JSON Schema"),
        ({"type": "integer", "minimum": "1"}, "schema.minimum is not a JSON Schema: '1' is not of type 'number'"),
        ({"maxLength": -1}, "schema.maxLength"),
        ({"required": "x"}, "schema.required"),
        ({"anyOf": []}, "schema.anyOf"),
        ({"enum": 3}, "schema.enum"),
        ({"items": {"pattern": "("}}, r"schema.items is not a JSON Schema: the pattern '\(' cannot be used"),
        ({"pattern": r"(a)\1"}, "cannot be used: backreferences are not supported"),
        ({"patternProperties": {"[": {}}}, "cannot be used"),
        ({"patternProperties": {"(a+)+$": {}}, "unevaluatedProperties": False}, "patternProperties goes with"),
        ({"$ref": "#/$defs/nothing"}, "schema is not a JSON Schema: .ref '#/.defs/nothing' leads nowhere"),
        ({"$ref": "#nothing"}, "leads nowhere"),
        ({"$ref": "#/enum", "enum": [1]}, "leads to no schema"),
        (
            {"items": {"$ref": "http://127.0.0.1:9/x"}},
            "schema.items is not a JSON Schema: .ref names a part",
        ),
        ({"items": {"$ref": "file:///etc/passwd"}}, "names a part of the same"),
        ({"items": {"$ref": "other.json"}}, "names a part of the same"),
        ({"items": {"$dynamicRef": "http://127.0.0.1:9/x"}}, "names a part of the same"),
        (
            {"$schema": DRAFT_4, "items": {"$ref": 5}},
            "names a part of the same|of type",
        ),
        ({"$ref": "#/x-parts/0", "x-parts": [{"type": "objekt"}]}, r"schema.x-parts\[0\].type is not a JSON Schema"),
        ({"$ref": "#"}, "schema is not a JSON Schema: it leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"type": "object", "allOf": [{"anyOf": [{"not": {"$ref": "#"}}]}]}, "back to itself"),
        ({"type": "object", "dependentSchemas": {"a": {"$ref": "#"}}}, "back to itself"),
    ],
)
def test_a_malformed_schema_is_refused_before_the_model_is_asked(schema: Any, problem: str) -> None:
    agent = Agent(provider="scripted", script=["{}"])
    with pytest.raises(InvalidArgument, match=problem) as caught:
        agent.session().json("x", schema=schema)
    assert len(str(caught.value)) < 400
    with pytest.raises(InvalidArgument):
        Agent(provider="scripted", script=[], output_schema=schema)


def test_a_reference_that_is_used_twice_is_no_circle() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": I}}
    assert check_value(schema, 1) == 1


# -- strangers' schemas and replies ------------------------------------------------------------------------------------


def read_refusal(schema: dict[str, Any], value: object) -> str:
    """The text of the refusal. A check that backtracks, or that has no limit, does not end within a lifetime here."""
    with pytest.raises((BadOutput, InvalidArgument)) as caught:
        check_value(schema, value)
    return str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"pattern": "^(a|a|a|a)*$"}}},
        {"properties": {"a": {"propertyNames": {}, "pattern": "^(a|aa)+$"}}},
    ],
)
def test_a_catastrophic_pattern_does_not_hang(schema: dict[str, Any]) -> None:
    assert "does not match" in read_refusal(schema, {"a": "a" * 5_000 + "!"})


@pytest.mark.parametrize("dialect", ["https://json-schema.org/draft/2020-12/schema", DRAFT_7])
def test_a_part_that_names_its_draft_has_the_same_limits(dialect: str) -> None:
    part = {"$schema": dialect, "pattern": "^(a+)+$"}
    for schema in (
        {"items": part},
        {"items": {"$ref": "#/$defs/p"}, "$defs": {"p": part}},
        {"items": {"$ref": "#/x/p"}, "x": {"p": part}},
        {"$schema": dialect, "anyOf": [{"items": {"$ref": "#/$defs/p"}}], "$defs": {"p": part}},
    ):
        read_refusal(schema, ["a" * 40 + "!"])


def test_names_of_properties_meet_no_catastrophic_pattern() -> None:
    schema = {"patternProperties": {"^(a+)+$": I}, "additionalProperties": False}
    read_refusal(schema, {"a" * 40 + "!": 1})


def test_a_schema_whose_check_grows_exponentially_is_stopped() -> None:
    levels: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**levels, "d40": {"type": "object"}}}
    assert "too many steps" in read_refusal(schema, {})
    deep: Any = 1
    for _ in range(40):
        deep = {"x": deep}
    twice = {"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]}
    assert "too many steps" in read_refusal(twice, deep)


def test_deep_schemas_and_deep_replies_are_checked_or_refused() -> None:
    deep: Any = {"n": 1}
    for _ in range(30):
        deep = {"n": 1, "kids": [deep]}
    assert check_value(TREE, deep) == deep
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        nested = {"items": nested}
    value: Any = "x"
    for _ in range(60):
        value = [value]
    with pytest.raises(BadOutput):
        OutputShape(nested).read(orjson.dumps(value).decode())
    for _ in range(100):
        nested = {"items": nested}
    with pytest.raises(InvalidArgument, match="nested deeper"):
        OutputShape(nested)


def test_a_check_near_the_end_of_the_stack_is_a_problem_and_no_crash() -> None:
    deep: Any = {"n": 1}
    for _ in range(30):
        deep = {"n": 1, "kids": [deep]}
    shape, text = OutputShape(TREE), orjson.dumps(deep).decode()

    def dig(levels: int) -> Any:
        return shape.read(text) if levels == 0 else dig(levels - 1)

    with pytest.raises(BadOutput, match="nested too deeply"):
        dig(sys.getrecursionlimit() - len(inspect.stack()) - 100)


def test_threads_share_a_schema() -> None:
    shape = OutputShape({"type": "array", "items": {"type": "integer", "minimum": 0}})
    text = orjson.dumps(list(range(2_000))).decode()
    with ThreadPoolExecutor(4) as pool:
        assert all(len(found) == 2_000 for found in pool.map(shape.read, [text] * 12))


# -- what the log keeps ------------------------------------------------------------------------------------------------


def test_a_stored_schema_is_never_refused() -> None:
    for schema in ({"type": "objekt"}, {"pattern": r"(a)\1"}, {"minimum": "1"}, {}, {"$ref": "#"}):
        assert OutputShape.from_log(schema).read('"a"') == "a"
    with pytest.raises(BadOutput):
        OutputShape.from_log({"minimum": 1}).read("0")


def test_a_reply_that_was_accepted_is_not_checked_again() -> None:
    assert OutputShape.from_log({"minimum": 1}).read_accepted("0") == 0
    with pytest.raises(BadOutput, match="not JSON"):
        OutputShape.from_log({"minimum": 1}).read_accepted("no")


class Price(BaseModel):
    amount: Decimal
    name: str = Field(pattern="^[a-z]+$")


def test_the_schema_of_a_type_can_be_sent_to_a_server() -> None:
    schema = OutputShape(Price).schema
    assert check_value(schema, {"amount": "12.5", "name": "tea"})
    with pytest.raises(BadOutput):
        check_value(schema, {"amount": "12.5", "name": "Tea"})


# -- the cost ----------------------------------------------------------------------------------------------------------


def test_only_a_json_schema_imports_jsonschema() -> None:
    code = """
import sys
from dataclasses import dataclass
from holdfast import Agent
@dataclass
class Point:
    x: int
Agent(provider="scripted", script=["hi"]).session().run("a")
assert Agent(provider="scripted", script=['{"x": 1}']).session().json("a", schema=Point).output == Point(1)
assert "jsonschema" not in sys.modules
Agent(provider="scripted", script=['{"x": 1}']).session().json("a", schema={"type": "object"})
assert "jsonschema" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_schema_is_compiled_once() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(200)}}
    OutputShape(schema)
    compiled = compile_schema.cache_info().misses
    for _ in range(3):
        OutputShape(dict(reversed(schema.items())))
    assert compile_schema.cache_info().misses == compiled
