"""Which providers there are, and `LanguageModel`: the model that a user names."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import AgentError, AuthenticationFailed, InvalidArgument
from holdfast.log.arguments import check_options, looks_like, unexpected_keyword
from holdfast.models.endpoint import Codec, Dialect, Endpoint

if TYPE_CHECKING:
    from holdfast.models.base import Model, ModelEvent, ModelRequest
    from holdfast.models.transport import Transport

DEFAULT_MODEL = "HOLDFAST_MODEL"  # the variable: "openai:gpt-4o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One row of the table: where a provider is, which variables configure it, and how it likes to be spoken to."""

    base_url: str
    key_variables: tuple[str, ...]
    url_variable: str
    codec: str = "openai"  # the module that speaks its format, loaded with the first call
    dialect: Dialect = field(default_factory=Dialect)
    needs_key: bool = True
    context_window: int = 128_000


PROVIDERS: dict[str, Provider] = {
    "openai": Provider(
        base_url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        dialect=Dialect(max_tokens_field="max_completion_tokens"),
    ),
    "anthropic": Provider(
        base_url="https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variable="ANTHROPIC_BASE_URL",
        codec="anthropic",
        context_window=200_000,
    ),
    "google": Provider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_variable="GEMINI_BASE_URL",
        context_window=1_048_576,
    ),
    "ollama": Provider(
        base_url="http://localhost:11434/v1",
        key_variables=("OLLAMA_API_KEY",),
        url_variable="OLLAMA_BASE_URL",
        needs_key=False,
        context_window=8_192,  # tokens that its server reads by default; it drops the rest in silence
    ),
    "groq": Provider(
        base_url="https://api.groq.com/openai/v1", key_variables=("GROQ_API_KEY",), url_variable="GROQ_BASE_URL"
    ),
    "mistral": Provider(
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        url_variable="MISTRAL_BASE_URL",
        dialect=Dialect(asks_for_usage=False, short_ids=True, takes_media_after_results=False),
    ),
    "openrouter": Provider(
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        url_variable="OPENROUTER_BASE_URL",
    ),
    "deepseek": Provider(
        base_url="https://api.deepseek.com/v1",
        key_variables=("DEEPSEEK_API_KEY",),
        url_variable="DEEPSEEK_BASE_URL",
        dialect=Dialect(structured="json", needs_reasoning=True),
    ),
    "xai": Provider(
        base_url="https://api.x.ai/v1",
        key_variables=("XAI_API_KEY",),
        url_variable="XAI_BASE_URL",
        context_window=131_072,
    ),
    "together": Provider(
        base_url="https://api.together.xyz/v1", key_variables=("TOGETHER_API_KEY",), url_variable="TOGETHER_BASE_URL"
    ),
}

# By the beginning of a model's name; the longest that fits. Where newer models may have more, the smaller number
# stands: it costs an early compaction, the larger one a refused request.
CONTEXT_WINDOWS: dict[str, int] = {
    "gpt-3.5": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-5": 400_000,
    "gpt-6": 400_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude-": 200_000,
    "claude-fable-5": 1_000_000,
    "claude-haiku-5": 1_000_000,
    "claude-mythos-5": 1_000_000,
    "claude-opus-5": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "gemini-": 1_048_576,
    "deepseek-": 128_000,
    "grok-4": 256_000,
    "llama-3": 128_000,
    "mistral-": 128_000,
}


def parse_name(name: str) -> tuple[str, str]:
    """Provider and model of "openai:gpt-4o"; what follows the first colon is the model's own name."""
    provider, colon, model = name.partition(":")
    if provider in ("echo", "scripted"):
        return provider, model or provider
    if not colon or not provider or not model:
        raise InvalidArgument(f"model {name!r}: write provider and model, for example 'openai:gpt-4o'")
    return provider, model


def context_window_of(provider: str, model: str) -> int:
    name = model.rsplit("/", 1)[-1]  # some gateways put the maker in front
    fitting = [begin for begin in CONTEXT_WINDOWS if name.startswith(begin)]
    row = PROVIDERS.get(provider)
    if fitting and provider != "ollama":
        return CONTEXT_WINDOWS[max(fitting, key=len)]
    return row.context_window if row else 128_000


class LanguageModel:
    """A model by name: `LanguageModel("openai", "gpt-4o")`, `LanguageModel(model="openai:gpt-4o")`, or without
    arguments the one in HOLDFAST_MODEL.

    Options: `temperature, max_tokens, stop, tool_choice` are defaults for each request; `timeout, max_retries, headers,
    context_window, structured, clock` are about the connection; any other goes into the provider's request as it is.
    """

    def __init__(
        self,
        provider: str | None = None,
        model: str | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        **options: Any,  # noqa: ANN401 - those of the provider
    ) -> None:
        if base_url is not None:
            _check_url(base_url, "base_url")
        check_options(options)
        self._headers: Mapping[str, str] = options.pop("headers", None) or {}
        for name, value in self._headers.items():
            if not _fits_header(name) or not _fits_header(value):
                raise InvalidArgument(f"header {name!r} has a character that no header can hold: write ASCII, one line")
        self._name_arguments = (provider, model)
        self._api_key, self._base_url = api_key, base_url
        self._script = options.pop("script", None)
        self._window: int | None = options.pop("context_window", None)
        self._structured = options.pop("structured", None)
        clock = options.pop("clock", None) or SYSTEM_CLOCK
        connection = {name: options.pop(name) for name in _CONNECTION if options.get(name) is not None}
        self._connection = {"clock": clock, **connection}
        self._defaults = {name: options.pop(name) for name in _DEFAULTS if name in options}
        for name in options:  # the provider may know it, unless it is one of ours misspelt
            if looks_like(name, _OPTIONS):
                raise unexpected_keyword("LanguageModel", name, _OPTIONS)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._provider_and_model: tuple[str, str] | None = None
        self._local_model: Model | None = None
        if provider is not None or model is not None:
            self._resolve_name()  # a wrong name raises at once; a missing key, or no name at all, with the first call

    @property
    def provider(self) -> str:
        return self._resolve_name()[0]

    @property
    def name(self) -> str:
        return self._resolve_name()[1]

    @property
    def context_window(self) -> int:
        local = self._get_local_model()
        return self._window or (local.context_window if local else context_window_of(*self._resolve_name()))

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        request = self._apply_defaults(request)
        local = self._get_local_model()
        if local is not None:
            return local.stream(request)
        return self._transport.stream(self._load_codec(), request, self.endpoint())

    def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        request = self._apply_defaults(request)
        local = self._get_local_model()
        if local is not None:
            return local.stream_async(request)
        return self._transport.stream_async(self._load_codec(), request, self.endpoint())

    def close(self) -> None:
        """Close this process's connections; the model can still be used, and opens new ones."""
        self._transport.close()

    async def close_async(self) -> None:
        await self._transport.close_async()

    def endpoint(self) -> Endpoint:
        """Where requests go, as the environment says now. Raises if a key is missing."""
        provider = self.provider
        row = PROVIDERS.get(provider)
        base_url, key, needs_key = self._base_url, self._api_key, False
        url_source, key_source = "base_url=", "api_key="
        if row is not None:
            if base_url is None:
                base_url, url_source = os.environ.get(row.url_variable) or row.base_url, row.url_variable
            if not key:
                key_source = next((name for name in row.key_variables if os.environ.get(name)), row.key_variables[0])
                key = os.environ.get(key_source) or None
            needs_key = row.needs_key and base_url == row.base_url
        assert base_url is not None
        _check_url(base_url, row.url_variable if row else "base_url")
        if row is not None and needs_key and not key:
            text = f"no API key for {provider}: set {row.key_variables[0]}, or pass api_key="
            raise AuthenticationFailed(text, provider=provider)
        if key is not None and (not _fits_header(key) or " " in key):
            text = f"the API key for {provider} has a character that no key has (a line end or a space?): set it again"
            raise AuthenticationFailed(text, provider=provider)
        base_url, headers, secrets = _move_userinfo_to_header(base_url, self._headers)
        dialect = row.dialect if row else Dialect()
        if self._structured is not None:
            dialect = replace(dialect, structured=self._structured)
        return Endpoint(
            provider=provider,
            base_url=base_url,
            api_key=key,
            headers=headers,
            secrets=secrets,
            dialect=dialect,
            key_source=key_source,
            url_source=url_source,
        )

    def secrets(self) -> tuple[str, ...]:
        """The texts that no record of the logger may quote: the key, a password of the URL, the values of headers."""
        try:
            endpoint = None if self.provider in _LOCAL else self.endpoint()
        except AgentError:
            return ()  # there is no usable key
        if endpoint is None:
            return ()
        return tuple(filter(None, (endpoint.api_key, *endpoint.secrets, *endpoint.headers.values())))

    def __repr__(self) -> str:
        provider, model = self._provider_and_model or self._name_arguments
        return f"LanguageModel({f'{provider}:{model}' if provider or model else ''!r})"

    @cached_property
    def _transport(self) -> Transport:
        from holdfast.models.transport import Transport

        return Transport(**self._connection)

    def _load_codec(self) -> Codec:
        row = PROVIDERS.get(self.provider)
        codec: Codec = import_module(f"holdfast.models.{row.codec if row else 'openai'}")
        return codec

    def _resolve_name(self) -> tuple[str, str]:
        if self._provider_and_model is None:
            self._provider_and_model = self._find_provider_and_model(*self._name_arguments)
        return self._provider_and_model

    def _find_provider_and_model(self, provider: str | None, model: str | None) -> tuple[str, str]:
        if provider is None and model is None:
            name = os.environ.get(DEFAULT_MODEL)
            if not name:
                text = f"no model is configured: set {DEFAULT_MODEL}=openai:gpt-4o, or pass provider= and model="
                raise InvalidArgument(text)
            provider, model = parse_name(name)
        elif provider is None:
            assert model is not None
            is_bare = self._base_url is not None and model.partition(":")[0] not in (*PROVIDERS, *_LOCAL)
            provider, model = ("custom", model) if is_bare else parse_name(model)
        elif model is None:
            if provider not in _LOCAL:
                raise InvalidArgument(f"which model of {provider}? Pass model=, or model='{provider}:...'")
            model = provider
        else:
            model = model.removeprefix(f"{provider}:")
        if provider not in PROVIDERS and provider not in _LOCAL and self._base_url is None:
            known = ", ".join([*PROVIDERS, *_LOCAL])
            raise InvalidArgument(f"unknown provider {provider!r}: use one of {known}, or pass base_url=")
        if self._script is not None and provider != "scripted":
            raise InvalidArgument("script= is for provider='scripted'")
        return provider, model

    def _get_local_model(self) -> Model | None:
        provider = self.provider
        if self._local_model is None and provider in _LOCAL:
            from holdfast.models.echo import EchoModel
            from holdfast.models.scripted import ScriptedModel

            self._local_model = EchoModel() if provider == "echo" else ScriptedModel(self._script or [])
        return self._local_model

    def _apply_defaults(self, request: ModelRequest) -> ModelRequest:
        """The request with what it leaves open filled in."""
        changes: dict[str, Any] = {name: value for name, value in self._defaults.items() if not _is_set(request, name)}
        if request.messages and request.messages[-1].role == "tool":
            changes.pop("tool_choice", None)  # a call that is forced each time never lets the model answer
        if not request.model:
            changes["model"] = self.name
        if self._options:
            changes["options"] = self._options | dict(request.options)
        return replace(request, **changes) if changes else request


_LOCAL = ("echo", "scripted")
_CONNECTION = ("timeout", "max_retries", "max_seconds", "max_wait", "max_bytes")
_DEFAULTS = ("temperature", "max_tokens", "stop", "tool_choice")
_OPTIONS = ("provider", "model", "api_key", "base_url", "headers", "context_window", *_CONNECTION, *_DEFAULTS)


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_set(request: ModelRequest, name: str) -> bool:
    return getattr(request, name) not in (None, ())


def _move_userinfo_to_header(url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str], tuple[str, ...]]:
    """A user and password in a URL go into a header instead: URLs are logged, and quoted in errors."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, headers, ()
    secret = base64.b64encode(unquote(userinfo).encode()).decode()
    password = unquote(userinfo).partition(":")[2]
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {secret}", **headers}, (secret, password)


def _check_url(url: str, what: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidArgument(f"{what} is not a URL: write it like https://host/v1") from None  # it may hold a key
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"{what} is not a URL: write it like https://host/v1")
