"""The log of the server: one JSON object per line on stderr, never with content, never with a key.

A log call has a fixed text and facts beside it (`extra=extra_fields(...)`). An exception is logged by its class and its
traceback lines, not by its text, which may quote what a user wrote. The one exception is a tool that raised: its
traceback is logged as the library reports it, with the text, because the tool is code of the server's owner.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from holdfast import diagnostics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.log.times import to_datetime
from holdfast.models.provider_errors import redact_secrets

log = logging.getLogger("holdfast.server")
access_log = logging.getLogger("holdfast.access")
request_id: ContextVar[str] = ContextVar("request_id", default="")

MAX_TEXT = 2000  # characters of one text
MAX_TRACE_LINES = 20  # calls in the traceback of an unexpected error
MAX_TRACEBACK_LINES = 100  # lines in the traceback of a tool
LOGGERS = ("holdfast", "uvicorn")


def extra_fields(**facts: object) -> dict[str, Any]:
    """Return facts for `extra=`; they become fields of the line."""
    return {"fields": facts}


def configure_logging(level: str, *, secrets: Iterable[str] = (), stream: IO[str] | None = None) -> None:
    """Send the logs of holdfast and uvicorn to stderr. `secrets` are removed from every text."""
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(secrets))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # It logs whole addresses, with any text that a client put there; the middleware logs each request itself.
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL + 1)


def log_request(level: int, facts: dict[str, Any]) -> None:
    """Write the line of a request. Every request has one, so it bypasses the records of `logging`, which cost more than
    all other steps. Every value in it is checked already, so nothing has to be cleaned."""
    if not access_log.isEnabledFor(level):
        return
    for handler in logging.getLogger(LOGGERS[0]).handlers:
        if isinstance(handler, LineHandler):
            name = logging.getLevelName(level).lower()
            line = {
                "time": to_datetime(SYSTEM_CLOCK.now()),
                "level": name,
                "logger": access_log.name,
                "message": "request",
            }
            handler.write(orjson.dumps(line | facts).decode())
            return
    access_log.log(level, "request", extra={"fields": facts})


class LineHandler(logging.StreamHandler[IO[str]]):
    """A stream handler that can also write a finished line."""

    def write(self, line: str) -> None:
        try:
            with self.lock or nullcontext():
                self.stream.write(line + self.terminator)
                self.flush()
        except (OSError, ValueError):
            pass  # the reader of the log is gone: requests are served all the same


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if asked := request_id.get():
            line["request_id"] = asked
        line |= getattr(record, "fields", {})
        is_library_record = record.name == diagnostics.LOGGER.name
        if is_library_record:
            line |= diagnostics.read_fields(record)
        if is_library_record and record.exc_text is not None:
            line["traceback"] = record.exc_text.splitlines()[-MAX_TRACEBACK_LINES:]
        elif record.exc_info and record.exc_info[1] is not None:
            line |= describe_exception(record.exc_info[1])
        # The library has redacted its tracebacks; the rest of its records is ids, which may look like keys.
        cleaned = {key: self._clean_value(value, is_redacted=is_library_record) for key, value in line.items()}
        # ASCII only, so that no Unicode line break or control character can end the line.
        text = json.dumps(cleaned, default=_type_name)
        return text.replace("\x7f", "\\u007f")

    def _clean_value(self, value: object, *, is_redacted: bool) -> object:
        if isinstance(value, list | tuple):
            return [self._clean_value(each, is_redacted=is_redacted) for each in value]
        if not isinstance(value, str):
            return value
        for secret in self._secrets:
            value = value.replace(secret, "[removed]")
        return value[:MAX_TEXT] if is_redacted else redact_secrets(value[:MAX_TEXT])


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Return an exception without its text: its class and its traceback lines."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_TRACE_LINES:]
    return {
        "error": diagnostics.class_name(error),
        "trace": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _type_name(value: object) -> str:
    """Return the type of a value that is no JSON: its `repr` may hold content."""
    return f"({type(value).__name__})"
