"""The base class of response models, and `mirror`: a model takes its fields from a dataclass of the library, so that no
field is listed twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from holdfast.server.schemas.requests import optional_field

Number = Annotated[int, Field(ge=0)]


class ResponseBody(BaseModel):
    """A model of an answer: it lists every field that the answer may have."""

    model_config = ConfigDict(extra="forbid")


Model = TypeVar("Model", bound=ResponseBody)


def mirror(source: type, *, optional: bool = False) -> Callable[[type[Model]], type[Model]]:
    """Add the fields of a dataclass to a response model. A field that the model declares itself stays as declared.

    Every field is required, also one with a default in the library: an answer always has it. With `optional` every
    field may be missing and none is null, as `to_dict` of a policy leaves out what is not set. A whole number of an
    answer is a count or the number of an event, so it is never negative.
    """

    def add_fields(model: type[Model]) -> type[Model]:
        hints = get_type_hints(source)
        added: dict[str, Any] = {
            field.name: _optional(hints[field.name]) if optional else (_number(hints[field.name]), ...)
            for field in fields(source)
            if field.name not in model.model_fields
        }
        mirrored: type[Model] = create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **added
        )
        return mirrored

    return add_fields


def _number(hint: Any) -> Any:  # noqa: ANN401 - a type hint
    return Number if hint is int else hint


def _optional(hint: Any) -> tuple[Any, Any]:  # noqa: ANN401 - a type hint
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint, optional_field()
