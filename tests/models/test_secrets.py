"""Keys and what was said never get into errors, their causes, logs or representations."""

from __future__ import annotations

import base64
import logging
import traceback
from typing import Any

import pytest

from holdfast.errors import AgentError, InvalidArgument, ProviderError
from holdfast.log.messages import Message
from holdfast.models import LanguageModel, ModelRequest
from holdfast.models.provider_errors import quote_message
from tests.models.conftest import KEY, Ask, RecordingClock
from tests.models.frames import Reply, encode_frame
from tests.models.loopback_provider import (
    Answer,
    Provider,
    make_corrupt_reply,
    make_cut_reply,
    make_failing_reply,
    make_http_error,
)

MESSAGE_TEXT = "the-patient-has-migraines"
HI = ModelRequest(messages=[Message.user(MESSAGE_TEXT)])

ECHOED = f"Incorrect API key provided: {KEY}. You said {KEY[:12]}***"
FAULTS: list[Any] = [
    make_http_error(400, message=ECHOED),
    make_http_error(401, "invalid_api_key", ECHOED),
    make_http_error(403, "permission_error", f"Authorization: Bearer {KEY}"),
    make_http_error(429, message=f"x-api-key={KEY[4:20]}"),
    make_http_error(500, message=ECHOED),
    make_http_error(400, message=f"bad header Bearer abcdefgh12345678 {KEY}"),
    Answer([ECHOED.encode()], 500, {"content-type": "text/plain"}),
    Answer([ECHOED.encode()], 200, {"content-type": "text/html"}),
    Answer([ECHOED.encode()], 302, {"location": "http://127.0.0.1:1/"}),
    Answer([b'{"error": "' + ECHOED.encode() + b'"}'], 200, {"content-type": "application/json"}),
    Answer([b"data: {" + ECHOED.encode() + b"\n\n"]),
    Answer([b"data: " + base64.b64encode(KEY.encode()) + b"\n\n"]),
    Answer([ECHOED.encode() + b"\n\n"]),
    make_failing_reply(Reply(), 4, "api_error", ECHOED),
    make_failing_reply(Reply(), 4, "authentication_error", ECHOED),
    make_corrupt_reply(Reply(text=KEY), 5),
    make_cut_reply(Reply(text=KEY), 5, "reset"),
    make_cut_reply(Reply(), 0, "cut"),
    Answer([encode_frame({"error": {"message": [ECHOED]}})]),
]


def describe_error(error: BaseException) -> str:
    """All that a logger, a tracker or a curious debugger could print of an error and of what led to it."""
    seen: set[int] = set()
    text = ""
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        text += f"{each!s} {each!r} {each.args} {vars(each)} " + "".join(traceback.format_exception_only(each))
        for value in vars(each).values():
            text += f" {value} {getattr(value, 'headers', '')!r}"
        todo += [each.__cause__, each.__context__]
    return text


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
def test_no_fault_reveals_the_key(
    provider: Provider, wire: str, ask: Ask, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = LanguageModel(wire, "m", api_key=KEY, base_url=f"{provider.url}/v1", clock=RecordingClock(), max_retries=1)
    provider.enqueue(fault, fault)
    with pytest.raises(ProviderError) as caught:
        ask(model, HI)
    logged = " ".join(f"{record.getMessage()} {record.args}" for record in caplog.records)
    for text in (describe_error(caught.value), logged, repr(model), repr(vars(caught.value))):
        assert KEY not in text
        assert KEY[3:16] not in text
        assert MESSAGE_TEXT not in text
    model.close()


def test_a_success_logs_neither_key_nor_words(
    provider: Provider, model: LanguageModel, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ask(model, HI)
    logged = " ".join(f"{record.getMessage()} {record.args}" for record in caplog.records)
    assert KEY not in logged
    assert MESSAGE_TEXT not in logged
    assert Reply().text[:5] not in logged


@pytest.mark.parametrize("key", ["sk-bad\nkey-1234567890", "sk bad key-1234567890", "sk-bäd-key-1234567890"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(wire: str, key: str, ask: Ask) -> None:
    model = LanguageModel(wire, "m", api_key=key, base_url="http://127.0.0.1:9")
    with pytest.raises(AgentError) as caught:
        ask(model, HI)
    assert "1234567890" not in describe_error(caught.value)


@pytest.mark.parametrize("value", [f"{KEY}\r\nx: y", f"{KEY}é"])
def test_a_header_that_cannot_be_sent_is_not_shown(wire: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match="x-custom") as caught:
        LanguageModel(wire, "m", base_url="http://127.0.0.1:9", headers={"x-custom": value})
    assert KEY not in describe_error(caught.value)


def test_what_a_provider_says_is_quoted_safely() -> None:
    assert quote_message("temperature is not allowed", "sk-secret-key") == "temperature is not allowed"
    assert quote_message("your key sk-secret-key", "sk-secret-key") == ""
    assert quote_message("your key ends in cret-key", "sk-secret-key") == ""
    assert quote_message("the model x of ollama is EMPTY", "x") == "the model x of ollama is EMPTY"
    assert quote_message("the model x of ollama is EMPTY", "ollama") == "the model x of ollama is EMPTY"
    assert quote_message("lm-studio is up, lm-studios too", "lm-studio") == "[removed] is up, lm-studios too"
    assert quote_message("user pw, port 1pw", None, ["pw", ""]) == "user [removed], port 1pw"
    assert quote_message("a part of it: long-pass", None, ["a-long-password"]) == ""
    assert quote_message("found Bearer abcdefghijkl and AIzaSyA1234567890", None) == "found [removed] and [removed]"
    assert quote_message("two\nlines\x1b[31m", None) == "two lines?[31m"
    assert len(quote_message("x" * 5000, None)) == 300
