"""The errors of a provider say where it was asked, and which argument or variable to check; never a secret."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    AuthenticationFailed,
    BadResponse,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RequestRejected,
)
from holdfast.log.messages import Message
from holdfast.models import LanguageModel, ModelRequest
from tests.models.conftest import Ask
from tests.models.frames import Reply
from tests.models.loopback_provider import Answer, Provider, make_cut_reply, make_http_error

HI = ModelRequest(messages=[Message.user("hi")])
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
URLS = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


def ask_for_error(model: LanguageModel, ask: Ask) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(model, HI)
    model.close()
    return caught.value


def test_a_wrong_key_names_the_variable_or_the_argument(
    provider: Provider, wire: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = provider.url.removeprefix("http://")
    monkeypatch.setenv(KEYS[wire], "sk-from-the-environment")
    provider.enqueue(make_http_error(401), make_http_error(401))
    error = ask_for_error(LanguageModel(wire, "m", base_url=f"{provider.url}/v1", max_retries=0), ask)
    assert isinstance(error, AuthenticationFailed)
    assert str(error) == f"{wire} at {place} does not accept the API key (401): check {KEYS[wire]}"
    model = LanguageModel(wire, "m", base_url=f"{provider.url}/v1", api_key="sk-passed-here", max_retries=0)
    assert str(ask_for_error(model, ask)) == f"{wire} at {place} does not accept the API key (401): check api_key="


def test_a_provider_that_is_away_names_its_address_and_the_variable(
    wire: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URLS[wire], "http://alice:hunter2@127.0.0.1:1/v1?key=sk-in-the-query")
    error = ask_for_error(LanguageModel(wire, "m", max_retries=0), ask)
    assert isinstance(error, ProviderUnavailable)
    expected = f"{wire} at 127.0.0.1:1 cannot be reached (ConnectError): check the network and {URLS[wire]}"
    assert str(error) == expected
    model = LanguageModel(wire, "m", base_url="http://[::1]:1/v1", max_retries=0)
    assert f"{wire} at [::1]:1 cannot be reached" in str(error := ask_for_error(model, ask))
    assert str(error).endswith("check the network and base_url=")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://api.openai.com/v1", "api.openai.com:443"),
        ("http://localhost/v1", "localhost:80"),
        ("https://gateway.example:8443/v1", "gateway.example:8443"),
    ],
)
def test_the_port_is_that_of_the_scheme_if_none_is_given(url: str, place: str) -> None:
    assert LanguageModel("openai", "m", base_url=url, api_key="k").endpoint().place == f"openai at {place}"


def test_silence_and_odd_answers_name_the_address(provider: Provider, wire: str, ask: Ask) -> None:
    place = f"{wire} at {provider.url.removeprefix('http://')}"
    provider.enqueue(make_cut_reply(Reply(), 1, "hold"))
    model = LanguageModel(wire, "m", base_url=f"{provider.url}/v1", timeout=0.05, max_retries=0)
    error = ask_for_error(model, ask)
    assert (type(error), str(error).startswith(f"{place} was silent")) == (ProviderTimeout, True)
    provider.enqueue(Answer([b"<html>"], 200, {"content-type": "text/html"}))
    error = ask_for_error(LanguageModel(wire, "m", base_url=f"{provider.url}/v1", max_retries=0), ask)
    assert (type(error), str(error)) == (BadResponse, f"{place} did not answer with a stream: check base_url=")


@pytest.mark.parametrize("key", ["x", "none", "EMPTY", "ollama"])
def test_5_a_dummy_key_does_not_silence_the_provider(provider: Provider, wire: str, ask: Ask, key: str) -> None:
    words = "The model `x` of ollama does not exist, none like it, the list is EMPTY"
    provider.enqueue(make_http_error(404, message=words))
    model = LanguageModel(wire, "m", base_url=f"{provider.url}/v1", api_key=key, max_retries=0)
    error = ask_for_error(model, ask)
    assert isinstance(error, RequestRejected)
    assert f"(404): {words}; change the model" in str(error)
