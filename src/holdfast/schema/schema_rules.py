"""What a JSON Schema may be: as its draft says, complete in itself, without circles, with patterns that can be run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import InvalidArgument
from holdfast.log import codec
from holdfast.schema.patterns import BadPattern, compile_pattern

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from referencing import Resource, Specification
    from referencing._core import Resolver

MAX_ERRORS = 100  # errors compared, to find the one that says most
MAX_SHOWN = 200  # characters of a part of a schema, in a problem

_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords whose schemas apply to the value itself and not to a part of it.
_LISTS_FOR_VALUE = ("allOf", "anyOf", "oneOf")
_SCHEMAS_FOR_VALUE = ("not", "if", "then", "else")
_OBJECTS_FOR_VALUE = ("dependentSchemas", "dependencies")


def refuse_malformed(root: dict[str, Any], draft: type[Validator]) -> None:
    """Raise InvalidArgument unless every part of a schema is a schema and every reference leads to a part of it.

    Removes `$schema` from every part: where jsonschema meets it, it continues with the plain validator of that draft,
    which has no limits.
    """
    _SchemaWalk(root, draft).run()


def path_text(where: str, steps: Iterable[str | int]) -> str:
    return where + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def shorten(value: object) -> str:
    text = value if isinstance(value, str) else codec.encode(value, room=codec.WRAPPING_DEPTH).decode()
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


class _SchemaWalk:
    """A walk over all parts of one schema, along its keywords and its references."""

    def __init__(self, root: dict[str, Any], draft: type[Validator]) -> None:
        from referencing.jsonschema import specification_with

        self._root, self._draft = root, draft
        self._specification: Specification[Any] = specification_with(str(draft.META_SCHEMA["$schema"]))
        self._paths = dict(_find_paths(root, "schema"))
        self._same_value: dict[
            int, list[dict[str, Any]]
        ] = {}  # by id of a part, the parts that apply to the same value

    def run(self) -> None:
        from referencing import Registry

        self._check_against_draft(self._root)
        _drop_dialects(self._root, self._specification)
        resource = self._specification.create_resource(self._root)
        # A registry without a way to retrieve: it knows the schema and nothing else.
        waiting = [(resource, Registry().resolver_with_root(resource))]
        parts: list[dict[str, Any]] = []
        while waiting:
            resource, resolver = waiting.pop()
            part = resource.contents
            if not isinstance(part, dict) or id(part) in self._same_value:
                continue
            parts.append(part)
            self._same_value[id(part)] = list(_parts_for_same_value(part))
            self._refuse_patterns(part)
            waiting += self._follow_refs(part, resolver)
            waiting += [(each, resolver.in_subresource(each)) for each in resource.subresources()]
        self._refuse_circles(parts)
        self._refuse_unevaluated_patterns(parts)

    def _check_against_draft(self, part: dict[str, Any]) -> None:
        from jsonschema import FormatChecker
        from jsonschema.exceptions import best_match

        # No formats: the only one that matters is `regex`, and patterns are checked with the engine that runs them.
        checker: Any = self._draft(self._draft.META_SCHEMA, format_checker=FormatChecker(formats=()))
        error = best_match(islice(checker.iter_errors(part), MAX_ERRORS))
        if error is not None:
            self._refuse(part, shorten(error.message), *error.absolute_path)

    def _refuse(self, part: dict[str, Any], problem: str, *steps: str | int) -> NoReturn:
        raise InvalidArgument(f"{path_text(self._paths[id(part)], steps)} is not a JSON Schema: {problem}")

    def _refuse_patterns(self, part: dict[str, Any]) -> None:
        for pattern in (*([part["pattern"]] if "pattern" in part else ()), *part.get("patternProperties", ())):
            try:
                compile_pattern(pattern)
            except BadPattern as error:
                self._refuse(part, f"the pattern {shorten(pattern)!r} cannot be used: {error}")

    def _follow_refs(self, part: dict[str, Any], resolver: Resolver[Any]) -> Iterator[tuple[Resource[Any], Any]]:
        for word in _REFS:
            if word not in part:
                continue
            ref = part[word]
            target = self._look_up(part, word, resolver)
            if not isinstance(target.contents, (dict, bool)):
                self._refuse(part, f"{word} {ref!r} leads to no schema")
            if isinstance(target.contents, dict):
                self._same_value[id(part)].append(target.contents)
                if id(target.contents) not in self._same_value:  # the target may be under a keyword of no draft
                    self._check_against_draft(target.contents)
                    _drop_dialects(target.contents, self._specification)
            yield self._specification.create_resource(target.contents), target.resolver

    def _look_up(self, part: dict[str, Any], word: str, resolver: Resolver[Any]) -> Any:  # noqa: ANN401 - a private class
        from referencing.exceptions import Unresolvable

        ref = part[word]
        try:
            return resolver.lookup(ref)
        except (Unresolvable, ValueError, TypeError, AttributeError):  # the others: not even a reference
            if isinstance(ref, str) and ref.startswith("#"):
                self._refuse(part, f"{word} {shorten(ref)!r} leads nowhere")
            self._refuse(part, f"{word} names a part of the same schema, such as '#/$defs/item'")

    def _refuse_circles(self, parts: list[dict[str, Any]]) -> None:
        """Refuse a part that applies itself to the same value again: its check would never end."""
        finished: set[int] = set()
        for start in parts:
            above: dict[int, Iterator[dict[str, Any]]] = {}  # the parts between the start and this one
            entered: dict[str, Any] | None = start
            while entered is not None or above:
                if entered is not None and id(entered) in above:
                    self._refuse(entered, "it leads back to itself")
                if entered is not None and id(entered) not in finished:
                    above[id(entered)] = iter(self._same_value[id(entered)])
                if above:
                    last = next(reversed(above))
                    entered = next(above[last], None)
                    if entered is None:
                        finished.add(last)
                        del above[last]
                else:
                    entered = None

    def _refuse_unevaluated_patterns(self, parts: list[dict[str, Any]]) -> None:
        # For these two together, jsonschema matches names with `re`, whose time has no limit.
        patterned = [part for part in parts if part.get("patternProperties")]
        if patterned and any("unevaluatedProperties" in part for part in parts):
            self._refuse(
                patterned[0], "patternProperties goes with additionalProperties, not with unevaluatedProperties"
            )


def _find_paths(part: Any, where: str) -> Iterator[tuple[int, str]]:  # noqa: ANN401 - a part of a schema
    if isinstance(part, dict):
        yield id(part), where
        for name, inner in part.items():
            yield from _find_paths(inner, f"{where}.{name}")
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from _find_paths(inner, f"{where}[{index}]")


def _drop_dialects(root: dict[str, Any], specification: Specification[Any]) -> None:
    waiting: list[Any] = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$schema"), str):
                del part["$schema"]
            waiting += specification.subresources_of(part)


def _parts_for_same_value(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = [part[word] for word in _SCHEMAS_FOR_VALUE if word in part]
    found += [each for word in _LISTS_FOR_VALUE for each in part.get(word, ())]
    found += [each for word in _OBJECTS_FOR_VALUE for each in part.get(word, {}).values()]
    return (each for each in found if isinstance(each, dict))
