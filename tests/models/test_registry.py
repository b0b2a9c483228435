"""Providers by name, what configures them, and when a missing setting is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import AuthenticationFailed, InvalidArgument
from holdfast.log.messages import Message
from holdfast.models import LanguageModel, Model, ModelRequest
from holdfast.models.registry import PROVIDERS, context_window_of, parse_name
from tests.models.conftest import KEY, Ask, read_done
from tests.models.loopback_provider import Provider

HI = ModelRequest(messages=[Message.user("hi")])


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_MODEL", raising=False)
    for row in PROVIDERS.values():
        for name in (*row.key_variables, row.url_variable):
            monkeypatch.delenv(name, raising=False)


def test_the_promised_providers_are_there() -> None:
    promised = "openai anthropic google ollama groq mistral openrouter deepseek xai together"
    assert list(PROVIDERS) == promised.split()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("openai:gpt-4o", ("openai", "gpt-4o")),
        ("ollama:llama3.2:3b", ("ollama", "llama3.2:3b")),
        ("openrouter:anthropic/claude-opus-5", ("openrouter", "anthropic/claude-opus-5")),
        ("echo", ("echo", "echo")),
    ],
)
def test_names(name: str, parts: tuple[str, str]) -> None:
    assert parse_name(name) == parts
    model = LanguageModel(model=name)
    assert (model.provider, model.name) == parts


def test_provider_and_model_may_come_apart_or_together() -> None:
    for model in (
        LanguageModel("openai", "gpt-4o"),
        LanguageModel("openai", "openai:gpt-4o"),
        LanguageModel(model="openai:gpt-4o"),
    ):
        assert (model.provider, model.name, repr(model)) == ("openai", "gpt-4o", "LanguageModel('openai:gpt-4o')")


def test_a_language_model_is_a_model() -> None:
    model: Model = LanguageModel("openai", "gpt-4o")
    assert model.context_window == 128_000


def test_no_arguments_mean_the_configured_default(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel()  # nothing is configured yet, and nothing is wrong yet
    with pytest.raises(InvalidArgument, match="HOLDFAST_MODEL"):
        model.stream(HI)
    monkeypatch.setenv("HOLDFAST_MODEL", "anthropic:claude-opus-5")
    assert (model.provider, model.name, model.context_window) == ("anthropic", "claude-opus-5", 1_000_000)


def test_wrong_names_are_refused_at_once() -> None:
    with pytest.raises(InvalidArgument, match=r"openai, anthropic, .*scripted"):
        LanguageModel("opanai", "gpt-4o")
    with pytest.raises(InvalidArgument, match="'openai:gpt-4o'"):
        LanguageModel(model="gpt-4o")
    with pytest.raises(InvalidArgument, match="which model of openai"):
        LanguageModel("openai")
    with pytest.raises(InvalidArgument, match="base_url is not a URL"):
        LanguageModel("openai", "m", base_url="localhost:80")
    with pytest.raises(InvalidArgument, match="scripted"):
        LanguageModel("echo", script=["a"])


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_missing_key_is_named_at_the_first_call(name: str, ask: Ask) -> None:
    model = LanguageModel(name, "m")
    if not PROVIDERS[name].needs_key:
        assert model.endpoint().api_key is None
        return
    with pytest.raises(AuthenticationFailed, match=PROVIDERS[name].key_variables[0]):
        ask(model, HI)


def test_the_usual_variables_configure_a_provider(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, wire: str, ask: Ask
) -> None:
    monkeypatch.setenv(f"{wire.upper()}_API_KEY", "from-the-environment")
    monkeypatch.setenv(f"{wire.upper()}_BASE_URL", f"{provider.url}/v1")
    model = LanguageModel(wire, "m")
    read_done(ask(model, HI))
    assert "from-the-environment" in str(provider.requests[0].headers)
    model.close()


def test_arguments_outrank_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a")
    endpoint = LanguageModel("openai", "m", api_key="b", base_url="http://b").endpoint()
    assert (endpoint.api_key, endpoint.base_url) == ("b", "http://b")
    assert LanguageModel("google", "m", api_key="c").endpoint().api_key == "c"


def test_a_second_variable_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "a")
    assert LanguageModel("google", "m").endpoint().api_key == "a"


def test_any_address_will_do_and_gets_no_key_that_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, ask: Ask
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for model in (
        LanguageModel(model="my:model", base_url=f"{provider.url}/v1"),
        LanguageModel("vllm", "my:model", base_url=f"{provider.url}/v1"),
    ):
        assert read_done(ask(model, HI)).provider in ("custom", "vllm")
        assert provider.requests[-1].body["model"] == "my:model"
        assert "authorization" not in provider.requests[-1].headers
        model.close()


def test_options_are_defaults_and_requests_outrank_them(provider: Provider, ask: Ask) -> None:
    model = LanguageModel(
        "openai",
        "m",
        base_url=f"{provider.url}/v1",
        temperature=0.1,
        max_tokens=5,
        seed=1,
        top_p=0.5,
        headers={"x-title": "t"},
    )
    request = ModelRequest(model="other", messages=HI.messages, temperature=0.0, options={"seed": 2})
    ask(model, request)
    seen = provider.requests[0]
    assert (seen.body["model"], seen.body["temperature"], seen.body["max_completion_tokens"]) == ("other", 0.0, 5)
    assert (seen.body["seed"], seen.body["top_p"], seen.headers["x-title"]) == (2, 0.5, "t")
    model.close()


@pytest.mark.parametrize(
    ("provider", "model", "window"),
    [
        ("openai", "gpt-4o-mini", 128_000),
        ("openai", "gpt-4.1-nano", 1_047_576),
        ("openai", "gpt-4", 8_192),
        ("anthropic", "claude-haiku-4-5", 200_000),
        ("openrouter", "anthropic/claude-sonnet-5", 1_000_000),
        ("ollama", "deepseek-r1:8b", 8_192),
        ("groq", "something", 128_000),
        ("unheard-of", "something", 128_000),
    ],
)
def test_context_windows(provider: str, model: str, window: int) -> None:
    assert context_window_of(provider, model) == window


def test_a_context_window_can_be_given() -> None:
    assert LanguageModel("openai", "gpt-4o", context_window=5).context_window == 5
    assert LanguageModel("echo").context_window == 128_000


def test_httpx2_is_loaded_with_the_first_call() -> None:
    code = (
        "import sys, holdfast.models as m; model = m.LanguageModel('openai', 'gpt-4o');"
        "from holdfast.log.messages import Message;"
        "list(m.LanguageModel('echo').stream(m.ModelRequest(messages=[Message.user('hi')])));"
        "sys.exit('httpx2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
