"""A provider on the loopback that streams OpenAI chat chunks: `python -m benchmarks.delta_server`.

The name of the model chooses the stream: "burst-20000" is 20,000 deltas as fast as the client reads, "paced-500-50" is
500 deltas at 50 a second. Each delta is an event in its own HTTP chunk, as providers send them. The text of a paced
delta is its number, the time when it was due and the time when it was sent, on the clock that all processes of a
machine share.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TAIL = b"0\r\n\r\n"
BATCH = 64  # deltas of a burst in one write to the socket
WORDS = (" the", " order", " of", " yesterday", " was", " sent", " twice", ",", " once", " by", " é")


def event(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    """Return one server-sent event in the form of OpenAI."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    frame = {
        "id": "chatcmpl-BkN1x7wTz0Jm8mQ4yq5vS6rUe2dXa",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "gpt-4o-2026-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_07871e2ad8",
        "choices": [choice],
        "usage": None,
        **more,
    }
    return b"data: " + json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def text(number: int) -> str:
    """Return the text of one delta of a burst."""
    return WORDS[number % len(WORDS)]


def burst(count: int) -> Iterator[bytes]:
    """Yield every event of a burst, with the first and the last one."""
    yield event({"role": "assistant", "content": "", "refusal": None})
    for number in range(count):
        yield event({"content": text(number)})
    yield event({}, "stop")
    yield usage(count)
    yield b"data: [DONE]\n\n"


def usage(count: int) -> bytes:
    counts = {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}
    return event({}, usage=counts)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            kind, *numbers = json.loads(await reader.readexactly(size))["model"].split("-")
            writer.write(HEAD)
            if kind == "burst":
                await _burst(writer, int(numbers[0]))
            else:
                await _paced(writer, int(numbers[0]), float(numbers[1]))
            writer.write(TAIL)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _burst(writer: asyncio.StreamWriter, count: int) -> None:
    pieces: list[bytes] = []
    for data in burst(count):
        pieces.append(framed(data))
        if len(pieces) == BATCH:
            writer.write(b"".join(pieces))
            pieces = []
            await writer.drain()
    writer.write(b"".join(pieces))


async def _paced(writer: asyncio.StreamWriter, count: int, rate: float) -> None:
    begun = time.monotonic()
    for number in range(count):
        due = begun + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.write(framed(event({"content": f"{number} {due:.6f} {time.monotonic():.6f};"})))
    writer.write(framed(event({}, "stop")) + framed(usage(count)) + framed(b"data: [DONE]\n\n"))


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
