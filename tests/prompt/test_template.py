"""Placeholders in instructions: which braces are read, and which stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.errors import MissingState
from holdfast.prompt.state_values import ABSENT
from holdfast.prompt.template import fill_template

STATE = {"name": "Alice", "writing.draft": "a draft", "a-b": 1, "_x1": None, "größe": "groß", "user:theme": "dark"}


def fill(template: str, state: Mapping[str, Any] = STATE) -> str:
    def read(scope: str | None, name: str) -> Any:
        return state.get(name if scope is None else f"{scope}:{name}", ABSENT)

    return fill_template(template, read)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello {name}!", "Hello Alice!"),
        ("{name}{name} {writing.draft} {a-b} {_x1} {größe}", "AliceAlice a draft 1 None groß"),
        ("{user:theme} {user:theme?} {user:other?}|", "dark dark |"),
        ("{name?} {other?}|{app:other?}|{temp:other?}|{session:other?}|", "Alice ||||"),
        # Braces around a name are read in pairs.
        ("{{name}} {{user:theme}} {{other}} {{other?}}", "{name} {user:theme} {other} {other?}"),
        ("{{{name}}} {{{{name}}}} {{{{{name}}}}}", "{Alice} {{name}} {{Alice}}"),
        ('{"user": {name}} {"user": {{name}}}', '{"user": Alice} {"user": {name}}'),
        ("{{name} {name}} }{name}{", "{Alice Alice} }Alice{"),
    ],
)
def test_a_name_in_braces_is_replaced_and_a_name_in_two_is_text(template: str, text: str) -> None:
    assert fill(template) == text


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": {"c": [{}]}}',
        '{{"a": 1}}',
        "[0-9]{3} x{2,} y{,5}",
        "{} {{}} { } {{{}}} }{ }} {{",
        "{ name } {name } {na me} {name!r} {name:>3} {name[0]} {name()} {name,} {*name} {name=}",
        "{1} {1name} {-name} {.name} {?} {name??} {²}",
        "{usr:name} {user:} {:name} {user:1} {user::name} {user:temp:name} {user.theme:x}",
        "def f(x): return {y: z for y in x}",
        "a { b } c\n{\n  name\n}",
        "${} $(name) %(name)s <name> [name] (name)",
    ],
)
def test_every_other_brace_stays_as_it_is(text: str) -> None:
    assert fill(text) == text


def test_a_dot_is_part_of_the_name_and_never_an_attribute() -> None:
    with pytest.raises(MissingState):
        fill("{name.__class__}")
    assert fill("{name.__class__}", {"name.__class__": "a key"}) == "a key"


def test_a_value_is_never_expanded_and_never_escaped() -> None:
    value = '<b>{name} {{name}} {other} & "quoted" \\1 \\g<0></b>'
    assert fill("{draft}{name}", {"draft": value, "name": "Alice"}) == value + "Alice"
    assert fill("{left}name{right}", {"left": "{", "right": "}", "name": "Alice"}) == "{name}"


def test_a_missing_name_says_what_to_do() -> None:
    with pytest.raises(MissingState) as found:
        fill("Improve {writing.plan}")
    assert (found.value.name, found.value.scope) == ("writing.plan", "session")
    for text in ("'writing.plan'", "set_state('writing.plan', ...)", "{writing.plan?}", "{{writing.plan}}"):
        assert text in str(found.value)
    with pytest.raises(MissingState) as found:
        fill("{user:language}")
    assert (found.value.name, found.value.scope) == ("language", "user")
    for text in ("set_state('language', ..., scope='user')", "user_id=", "{user:language?}", "{{user:language}}"):
        assert text in str(found.value)


def test_each_value_is_read_once() -> None:
    asked: list[tuple[str | None, str]] = []

    def read(scope: str | None, name: str) -> str:
        asked.append((scope, name))
        return "x"

    assert fill_template("{a}{a?}{user:a}{a} {{a}} {{b}}", read) == "xxxx {a} {b}"
    assert asked == [(None, "a"), ("user", "a")]


@pytest.mark.parametrize(
    "piece", ["{", "}", "{a", "{a.", "{{a", "a}}", "{user:", "{user:a", "{}", "{a?", "{a-{", "a", "{" * 1000 + "a"]
)
def test_a_hostile_text_takes_linear_time(piece: str) -> None:
    """With quadratic time this would take hours."""
    text = piece * (4_000_000 // len(piece))
    assert fill(text, {"a": "x"}) == text


def test_a_long_name_takes_linear_time() -> None:
    name = "a" * 2_000_000
    assert fill("{" + name, {}) == "{" + name
    assert fill("{" * 1_000_000 + name + "}", {name: "x"}) == "{" * 999_999 + "x"
