"""Schemas for structured output."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from holdfast.models.strict_schema import close_schema, is_strict, schema_name


class Inner(BaseModel):
    n: int = Field(ge=1, description="A number")
    tags: list[str] = Field(max_length=3)


class Outer(BaseModel):
    inner: Inner
    either: int | str
    several: list[Inner]


class Loose(BaseModel):
    anything: dict[str, int]


class Optional_(BaseModel):
    n: int = 0


def test_every_object_is_closed_and_no_constraint_is_left() -> None:
    found = close_schema(Outer.model_json_schema())
    assert found is not None
    assert found["additionalProperties"] is False
    inner = found["$defs"]["Inner"]
    assert inner["additionalProperties"] is False
    assert inner["properties"]["n"]["description"] == "A number (minimum: 1)"
    assert "maxItems" not in inner["properties"]["tags"]
    assert is_strict(found)


def test_an_object_that_is_open_by_intent_stays_so() -> None:
    assert close_schema(Loose.model_json_schema()) is None


def test_what_is_optional_is_not_strict() -> None:
    found = close_schema(Optional_.model_json_schema())
    assert found is not None
    assert not is_strict(found)


def test_the_schema_that_was_given_is_not_changed() -> None:
    schema = Outer.model_json_schema()
    close_schema(schema)
    assert schema == Outer.model_json_schema()


@pytest.mark.parametrize(("title", "name"), [("Outer", "Outer"), ("my répons!", "my_r_pons_"), ("", "output")])
def test_names(title: str, name: str) -> None:
    assert schema_name({"title": title}) == name
