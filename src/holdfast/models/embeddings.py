"""Vectors for texts, from an endpoint that speaks OpenAI's format, as most do.

An `Embeddings` is called with a list of texts and gives a list of vectors. Anything else that can be called so will do
in its place.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from holdfast.errors import BadResponse, InvalidArgument
from holdfast.models.endpoint import Endpoint, WireRequest
from holdfast.models.registry import PROVIDERS, LanguageModel

if TYPE_CHECKING:
    from holdfast.models.transport import Transport

BATCH = 128  # texts of one request
TIMEOUT = 30.0


class Embeddings:
    """An embedding model by name: `Embeddings("openai:text-embedding-3-small")`, or by the URL of its endpoint with
    `model=`. Keys and base URLs come from the environment, as they do for models that talk."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Any,  # noqa: ANN401 - those of the connection
    ) -> None:
        # Who is asked, and with which key, is found the same way for every kind of model.
        options = {"timeout": TIMEOUT, **options}
        self._model = LanguageModel(model=model, base_url=base_url, api_key=api_key, **options)
        row = PROVIDERS.get(self._model.provider)
        if self._model.provider in ("echo", "scripted") or (row is not None and row.codec != "openai"):
            raise InvalidArgument(
                f"{self._model.provider} offers no embeddings in OpenAI's format: "
                "use for example 'openai:text-embedding-3-small', or the URL of an endpoint with model="
            )

    @property
    def name(self) -> str:
        return f"{self._model.provider}:{self._model.name}"

    def __repr__(self) -> str:
        return f"Embeddings({self.name!r})"

    def __call__(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text, in order. Raises what a model raises that cannot be asked."""
        endpoint = self._model.endpoint()
        found: list[list[float]] = []
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            body = self._transport.fetch(_encode_request(self._model.name, part, endpoint), endpoint)
            found += _decode_response(body, len(part), endpoint)
        return found

    @cached_property
    def _transport(self) -> Transport:
        return self._model._transport


def _encode_request(model: str, texts: list[str], endpoint: Endpoint) -> WireRequest:
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.api_key:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
    return WireRequest(
        url=endpoint.base_url.rstrip("/") + "/embeddings",
        headers=headers | dict(endpoint.headers),
        body=orjson.dumps({"model": model, "input": texts, "encoding_format": "float"}),
    )


def _decode_response(body: bytes, count: int, endpoint: Endpoint) -> list[list[float]]:
    try:
        data = orjson.loads(body)["data"]
        vectors = [each["embedding"] for each in sorted(data, key=lambda each: each["index"])]
        places = [each["index"] for each in data]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        reason = f"({type(error).__name__}): check {endpoint.url_source} and the model"
        text = f"{endpoint.place} did not answer with embeddings {reason}"
        raise BadResponse(text, provider=endpoint.provider, retryable=False) from None
    if sorted(places) != list(range(count)) or not all(_is_vector(vector) for vector in vectors):
        text = f"{endpoint.provider} gave {len(vectors)} vectors for {count} texts, or no vectors: check the model"
        raise BadResponse(text, provider=endpoint.provider, retryable=False)
    return vectors


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) in (float, int) for each in value)
