"""A small assistant without a model: for the demo, so that everything can be tried with no key.

It follows a few rules and nothing else: it remembers names and what people say about themselves, counts, and uses tools
when asked. The same conversation always gets the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from holdfast.errors import NotJSON
from holdfast.log import codec
from holdfast.log.messages import Message, ToolCall, ToolResult
from holdfast.models.base import ModelEvent, ModelRequest, ToolSpec
from holdfast.models.scripted import Item, LocalModel, call, stream_items

WHAT_IT_IS = (
    "I am echo, a small deterministic stand-in for a model: I follow a few rules, I remember names, I count, and I use "
    "tools when asked ('use the tool ...'). Configure a real model with HOLDFAST_MODEL."
)

_NAME = re.compile(r"(?i:\bmy name is|\bcall me|\bI['’]?m called)\s+([^\W\d_][\w'’-]*(?:\s[A-Z][\w'’-]*){0,3})")
_ABOUT = re.compile(r"\bI (like|love|live|work|prefer|have)\b([^.!?\n]*)", re.IGNORECASE)
_USE = re.compile(r"\b(?:use|call|run)\s+(?:the\s+)?(?P<tool>tool\s+)?[`'\"]?(?P<name>[A-Za-z0-9_-]+)", re.IGNORECASE)
_COUNT_TO = re.compile(r"\bcount\s+(?:up\s+)?to\s+(\d{1,3})\b", re.IGNORECASE)
_HOW_MANY = re.compile(r"\bhow (?:many|often)\b.*\b(?:messages|times|asked|said)\b", re.IGNORECASE)
_ME = re.compile(
    r"\bknow about me\b|\bremember (?:about )?me\b|\bmy name\?|\bwho am i\b|\bwhat(?:'s| is) my name", re.IGNORECASE
)
_YOU = re.compile(r"\b(?:who|what) are you\b|\bintroduce yourself\b", re.IGNORECASE)
_GREETING = re.compile(r"^\W*(?:hi|hello|hey|good (?:morning|evening|day))\b", re.IGNORECASE)


class EchoModel(LocalModel):
    """The model behind `provider="echo"`."""

    name = provider = "echo"
    context_window = 128_000

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        yield from stream_items(compose_answer(request), request, "echo")


def compose_answer(request: ModelRequest) -> list[Item]:
    """The items of the reply that echo gives to this request."""
    said = [message.text for message in request.messages if message.role == "user"]
    text = said[-1] if said else ""
    results = _find_new_results(request.messages)
    forced = request.tool_choice if request.tool_choice not in (None, "auto", "none") else None
    if not results and request.tool_choice != "none":
        wish = _choose_tool_call(text, request.tools, forced)
        if wish is not None:
            return [wish]
    if request.output_schema is not None:
        known = {"name": _find_name(said) or "", "text": text}
        return [orjson.dumps(_sample_value(request.output_schema, request.output_schema, known)).decode()]
    if results:
        return [
            " ".join(f"{name} {'failed' if result.is_error else 'says'}: {result.content}" for name, result in results)
        ]
    return [_small_talk(text, said)]


def _small_talk(text: str, said: Sequence[str]) -> str:
    name = _find_name([text])
    if name:
        return f"Nice to meet you, {name}."
    if _ME.search(text):
        return _describe_user(said)
    if _YOU.search(text):
        return WHAT_IT_IS
    if found := _COUNT_TO.search(text):
        return ", ".join(str(number) for number in range(1, int(found[1]) + 1))
    if _HOW_MANY.search(text):
        return f"You have sent {len(said)} message{'s' if len(said) != 1 else ''}."
    if _GREETING.search(text):
        name = _find_name(said)
        return f"Hello{', ' + name if name else ''}. I am echo, a small stand-in for a model."
    if any(_find_statements(text)):
        return "I will remember that."
    return f"You said: {text}" if text else "You said nothing."


def _describe_user(said: Sequence[str]) -> str:
    name = _find_name(said)
    known = [f"your name is {name}"] if name else []
    known += [fact for each in said for fact in _find_statements(each) if not _ME.search(each)]
    if not known:
        return "I know nothing about you yet. Tell me your name."
    text = "; ".join(dict.fromkeys(known))
    return text[0].upper() + text[1:] + "."


def _find_statements(text: str) -> list[str]:
    return [f"you {verb.lower()}{rest.rstrip()}" for verb, rest in _ABOUT.findall(text) if rest.strip()]


def _find_name(said: Sequence[str]) -> str | None:
    for text in reversed(said):
        if found := _NAME.findall(text):
            return str(found[-1])
    return None


def _find_new_results(messages: Sequence[Message]) -> list[tuple[str, ToolResult]]:
    """The results that no message of the model has answered yet, with the names of their tools."""
    names: dict[str, str] = {}
    found: list[tuple[str, ToolResult]] = []
    for message in messages:
        if message.role in ("user", "assistant"):
            found = []
        for part in message.parts:
            if isinstance(part, ToolCall):
                names[part.id] = part.name
            elif isinstance(part, ToolResult):
                found.append((names.get(part.call_id, "the tool"), part))
    return found


def _choose_tool_call(text: str, tools: Sequence[ToolSpec], forced: str | None) -> Item | None:
    by_name = {tool.name: tool for tool in tools}
    for found in _USE.finditer(text):
        if found["name"] in by_name:
            return _build_call(by_name[found["name"]], text[found.end() :], text)
        if found["tool"]:
            there_are = ", ".join(by_name) or "none"
            return f"I have no tool named {found['name']}. I have: {there_are}."
    if forced is not None and tools:
        return _build_call(by_name.get(forced, tools[0]), text, text)
    return None


def _build_call(tool: ToolSpec, rest: str, text: str) -> Item:
    given = rest[rest.find("{") : rest.rfind("}") + 1]
    try:
        arguments = codec.parse(given) if given else None
    except NotJSON:
        arguments = None
    if not isinstance(arguments, dict):
        required = tool.parameters.get("required", ())
        schemas = {name: each for name, each in tool.parameters.get("properties", {}).items() if name in required}
        topic = re.sub(r"^\W*(?:for|with|on|to)\b", "", rest).strip(" .!?'\"`:") or text
        arguments = {name: _sample_value(each, tool.parameters, {"text": topic}) for name, each in schemas.items()}
    return call(tool.name, arguments)


def _sample_value(schema: Mapping[str, Any], root: Mapping[str, Any], known: Mapping[str, str], depth: int = 0) -> Any:  # noqa: ANN401 - JSON
    """A value that fits the schema, in the plain cases."""
    if "$ref" in schema and depth < 16:
        target: Any = root
        for step in str(schema["$ref"]).lstrip("#/").split("/"):
            target = target.get(step, {})
        return _sample_value(target, root, known, depth + 1)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return _sample_value(schema[name][0], root, known, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object" or "properties" in schema:
        return {
            key: known["name"] if key == "name" and known.get("name") else _sample_value(each, root, known, depth + 1)
            for key, each in schema.get("properties", {}).items()
            if depth < 16
        }
    if kind == "array":
        count = int(schema.get("minItems", 0))
        return [_sample_value(schema.get("items", {}), root, known, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    return {"boolean": False, "null": None}.get(str(kind), known.get("text", ""))
