"""Schemas of stream frames, for the OpenAPI document: the names, and the JSON of each."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {"type": "object"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_USAGE: Schema = {"type": "object", "properties": dict.fromkeys(_TOKENS, _NUMBER), "required": list(_TOKENS)}


def _frame_schema(type: str, **fields: Schema) -> Schema:
    return {
        "type": "object",
        "title": type,
        "properties": {"type": {"const": type}, **fields},
        "required": ["type", *fields],
    }


_DELTAS = [
    _frame_schema("content_block_start", index=_NUMBER, content_block=_OBJECT),
    _frame_schema("text_delta", text=_TEXT, index=_NUMBER),
    _frame_schema("thinking_delta", text=_TEXT, index=_NUMBER),
    _frame_schema("input_json_delta", index=_NUMBER, input_json=_TEXT),
    _frame_schema("content_block_stop", index=_NUMBER),
    _frame_schema("tool_progress", call_id=_TEXT, text=_TEXT),
]
_ALWAYS = [_frame_schema("ping"), _frame_schema("error", error=_TEXT, code=_TEXT)]
_START = _frame_schema("message_start", run_id=_TEXT, step=_NUMBER)
_START["properties"]["agent"] = _TEXT  # whose reply follows, if it has a name
_RUN = [
    _START,
    *_DELTAS,
    _frame_schema("message_delta", stop_reason=_TEXT_OR_NULL, usage=_USAGE),
    _frame_schema("message_stop"),
    _frame_schema("tool_result", call_id=_TEXT, name=_TEXT, content=_TEXT, is_error={"type": "boolean"}),
    _frame_schema("done", usage=_USAGE, steps=_NUMBER, run_id=_TEXT, response=_OBJECT),
    *_ALWAYS,
]
_EVENT: Schema = {
    "type": "object",
    "title": "event",
    "properties": {
        "seq": _NUMBER,
        "at": {"type": "string", "format": "date-time"},
        "type": {"type": "string", "pattern": r"^[a-z]+\.[a-z]+$"},
        "v": _NUMBER,
        "run": _TEXT_OR_NULL,
        "branch": _TEXT_OR_NULL,
        "author": _TEXT_OR_NULL,
        "actor": _TEXT_OR_NULL,
        "data": _OBJECT,
        "erased": {"type": "boolean"},
        "verified": {"type": "boolean"},
        "hash": _TEXT,
    },
    "required": ["seq", "at", "type", "v", "run", "branch", "author", "actor", "data", "erased", "verified", "hash"],
}


def _stream_response(description: str, names: Schema, frames: list[Schema], example: str) -> dict[str, Any]:
    item = {
        "type": "object",
        "properties": {
            "event": names,
            "id": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": frames}},
            "retry": _NUMBER,
        },
    }
    return {"description": description, "content": {"text/event-stream": {"itemSchema": item, "example": example}}}


_NAMES = [frame["title"] for frame in _RUN]

RUN_STREAM = _stream_response(
    "One run as it happens: one message_stop a step, one done or error at the end.",
    {"enum": _NAMES},
    _RUN,
    'id: 7.1\nevent: text_delta\ndata: {"type":"text_delta","text":"Hello ","index":0}\n\n',
)
LOG_STREAM = _stream_response(
    "A page of the log as JSON; or with `Accept: text/event-stream` the log from `after` or `Last-Event-ID` on, then "
    "what comes, with the deltas of turns that run on this server in between.",
    {"anyOf": [{"enum": _NAMES}, {"type": "string", "pattern": r"^[a-z]+\.[a-z]+$"}]},
    [_EVENT, *_DELTAS, *_ALWAYS],
    'id: 2\nevent: message.added\ndata: {"seq":2,"type":"message.added","data":{"role":"user","text":"Hi"}}\n\n',
)
