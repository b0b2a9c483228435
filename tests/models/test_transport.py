"""The network: retries, faults and clients, against a real server on loopback, blocking and not."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import chain, repeat
from typing import Any

import pytest

from holdfast.errors import (
    AuthenticationFailed,
    BadResponse,
    ContextTooLong,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    RequestRejected,
    StreamTruncated,
)
from holdfast.log.messages import Message
from holdfast.models import LanguageModel, ModelEvent, ModelRequest, ToolSpec
from tests.models.conftest import KEY, NAMES, Ask, RecordingClock, read_done
from tests.models.frames import Reply
from tests.models.loopback_provider import (
    Answer,
    Provider,
    make_corrupt_reply,
    make_cut_reply,
    make_endless_reply,
    make_failing_reply,
    make_http_error,
)

HI = ModelRequest(messages=[Message.user("hi")])


def test_a_reply_arrives(provider: Provider, model: LanguageModel, ask: Ask, wire: str) -> None:
    provider.enqueue(Reply(thinking="hm", calls=[("a", "look", '{"what": 1}')]))
    tool = ToolSpec(name="look", description="Look.")
    done = read_done(ask(model, ModelRequest(messages=[Message.user("hi")], tools=[tool], system="Be kind.")))
    assert done.message.text == Reply().text
    assert done.message.tool_calls[0].arguments == {"what": 1}
    assert (done.provider, done.stop_reason) == (wire, "tool_use")
    seen = provider.requests[0]
    assert seen.path == ("/v1/messages" if wire == "anthropic" else "/v1/chat/completions")
    assert seen.body["model"] == NAMES[wire]
    assert seen.headers["user-agent"] == "holdfast"
    assert KEY in (seen.headers.get("x-api-key", "") + seen.headers.get("authorization", ""))


def test_blocking_and_async_give_the_same_events(provider: Provider, model: LanguageModel) -> None:
    reply = Reply(thinking="hm", calls=[("a", "f", "{}")])
    provider.enqueue(reply, reply)

    async def gather() -> list[ModelEvent]:
        return [event async for event in model.stream_async(HI)]

    assert list(model.stream(HI)) == asyncio.run(gather())
    one, two = provider.requests
    assert one.body == two.body
    assert one.headers == two.headers


def test_deltas_arrive_as_they_are_sent(provider: Provider, model: LanguageModel) -> None:
    may_go_on = threading.Event()

    def answer_slowly(wire: str) -> Answer:
        def chunks() -> Any:
            frames = Reply().frames(wire)
            yield b"".join(frames[:4])
            assert may_go_on.wait(30)
            yield b"".join(frames[4:])

        return Answer(chunks())

    provider.enqueue(answer_slowly)
    events = model.stream(HI)
    assert next(events).type == "block_start"
    may_go_on.set()
    assert list(events)[-1].type == "done"


@pytest.mark.parametrize(
    "fault",
    [make_http_error(500), make_http_error(503), make_http_error(529, "overloaded_error"), make_http_error(409)],
)
def test_a_failure_on_their_side_is_asked_again(
    provider: Provider, model: LanguageModel, ask: Ask, clock: RecordingClock, fault: Any
) -> None:
    provider.enqueue(fault, fault)
    assert read_done(ask(model, HI)).message.text == Reply().text
    assert len(provider.requests) == 3
    assert len(clock.slept) == 2


def test_retries_end(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(*[make_http_error(500, message="it broke")] * 5)
    with pytest.raises(ProviderUnavailable, match="it broke") as caught:
        ask(model, HI)
    assert len(provider.requests) == 3
    assert (caught.value.http_status, caught.value.retryable) == (500, True)


def test_waits_have_full_jitter_and_grow(provider: Provider, wire: str, ask: Ask) -> None:
    class Half(RecordingClock):
        def random_bytes(self, size: int) -> bytes:
            return b"\x80".ljust(size, b"\0")

    clock = Half()
    model = LanguageModel(wire, "m", api_key=KEY, base_url=f"{provider.url}/v1", clock=clock, max_retries=6)
    provider.enqueue(*[make_http_error(500)] * 6)
    ask(model, HI)
    assert clock.slept == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    model.close()


def test_retry_after_is_honoured(provider: Provider, model: LanguageModel, ask: Ask, clock: RecordingClock) -> None:
    moment = datetime.fromtimestamp(clock.time // 10**6 + 1000, UTC)
    provider.enqueue(
        make_http_error(429, "rate_limit_error", retry_after="7"),
        make_http_error(429, "rate_limit_error", retry_after_ms="1500", retry_after="9"),
    )
    ask(model, HI)
    assert clock.slept == [7.0, 1.5]
    clock.slept.clear()
    clock.time = int(moment.timestamp() * 1e6) - 30_000_000
    provider.enqueue(make_http_error(503, retry_after=format_datetime(moment, usegmt=True)))
    ask(model, HI)
    assert 29.9 < clock.slept[0] <= 30.0


def test_a_wait_that_is_too_long_is_left_to_the_caller(
    provider: Provider, model: LanguageModel, ask: Ask, clock: RecordingClock
) -> None:
    provider.enqueue(make_http_error(429, "rate_limit_error", retry_after="100"))
    with pytest.raises(RateLimited) as caught:
        ask(model, HI)
    assert (caught.value.retry_after, caught.value.retryable, clock.slept) == (100.0, True, [])


def test_the_provider_may_say_whether_to_ask_again(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(make_http_error(400, x_should_retry="true"))
    assert read_done(ask(model, HI)).type == "done"
    provider.enqueue(make_http_error(500, x_should_retry="false"))
    with pytest.raises(ProviderUnavailable):
        ask(model, HI)
    assert len(provider.requests) == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (make_http_error(401, "authentication_error"), AuthenticationFailed),
        (make_http_error(403, "permission_error"), AuthenticationFailed),
        (make_http_error(400, "invalid_request_error", "temperature: unknown"), RequestRejected),
        (make_http_error(404, "not_found_error", "model: no-such"), RequestRejected),
        (make_http_error(422), RequestRejected),
        (make_http_error(400, "context_length_exceeded"), ContextTooLong),
        (make_http_error(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), ContextTooLong),
        (make_http_error(413, "request_too_large"), ContextTooLong),
        (make_http_error(429, "insufficient_quota"), RateLimited),
        (Answer([b""], 302, {"location": "http://127.0.0.1:1/"}), RequestRejected),
        (Answer([b"<html>hello</html>"], 200, {"content-type": "text/html"}), BadResponse),
        (Answer([b'{"choices": []}'], 200, {"content-type": "application/json"}), BadResponse),
        (
            Answer([b'{"error": {"code": "invalid_api_key"}}'], 200, {"content-type": "application/json"}),
            AuthenticationFailed,
        ),
    ],
)
def test_what_will_not_get_better_is_not_asked_again(
    provider: Provider, model: LanguageModel, ask: Ask, fault: Any, kind: type[ProviderError]
) -> None:
    provider.enqueue(fault)
    with pytest.raises(kind) as caught:
        ask(model, HI)
    assert type(caught.value) is kind
    assert len(provider.requests) == 1
    assert not caught.value.retryable
    assert caught.value.provider == model.provider


def test_a_body_that_is_no_json_says_nothing(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(*[Answer([b"<html>secret page</html>" * 10_000], 502, {"content-type": "text/html"})] * 3)
    with pytest.raises(ProviderUnavailable) as caught:
        ask(model, HI)
    assert str(caught.value) == f"{model.endpoint().place} failed on its side (502): ask again later"


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_a_connection_that_breaks_before_the_first_event_is_asked_again(
    provider: Provider, model: LanguageModel, ask: Ask, end: Any
) -> None:
    provider.enqueue(make_cut_reply(Reply(), 0, end), make_cut_reply(Reply(), 1, end))
    assert read_done(ask(model, HI)).message.text == Reply().text
    assert len(provider.requests) == 3


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_a_connection_that_breaks_later_is_truncated_and_not_asked_again(
    provider: Provider, model: LanguageModel, ask: Ask, end: Any
) -> None:
    for after in range(4, 8):
        provider.enqueue(make_cut_reply(Reply(), after, end))
        told: list[ModelEvent] = []
        with pytest.raises(StreamTruncated):
            ask(model, HI, told)
        assert told
        assert "done" not in [event.type for event in told]
    assert len(provider.requests) == 4


def test_a_stream_that_ends_too_early_is_truncated(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(make_cut_reply(Reply(), 5, "clean"))
    with pytest.raises(StreamTruncated):
        ask(model, HI)
    assert len(provider.requests) == 1


def test_corrupt_chunks_and_errors_in_the_stream(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(make_corrupt_reply(Reply(), 5), make_failing_reply(Reply(), 5))
    with pytest.raises(BadResponse):
        ask(model, HI)
    with pytest.raises(ProviderUnavailable, match="overloaded"):
        ask(model, HI)
    assert len(provider.requests) == 2


def test_an_error_as_the_first_event_is_asked_again(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(make_failing_reply(Reply(), 1), make_corrupt_reply(Reply(), 0))
    assert read_done(ask(model, HI)).message.text == Reply().text
    assert len(provider.requests) == 3


def test_an_endless_reply_is_cut(provider: Provider, wire: str, ask: Ask, clock: RecordingClock) -> None:
    model = LanguageModel(wire, "m", api_key=KEY, base_url=f"{provider.url}/v1", clock=clock, max_bytes=1_000_000)
    provider.enqueue(make_endless_reply(Reply()))
    with pytest.raises(BadResponse, match="1000000 bytes"):
        ask(model, HI)
    model.close()


def test_a_reply_that_takes_for_ever_is_cut(provider: Provider, wire: str, ask: Ask) -> None:
    class Hurried(RecordingClock):
        def monotonic(self) -> float:
            self.time += 100_000_000
            return super().monotonic()

    model = LanguageModel(wire, "m", api_key=KEY, base_url=f"{provider.url}/v1", clock=Hurried(), max_seconds=1000)
    provider.enqueue(make_endless_reply(Reply()))
    with pytest.raises(ProviderTimeout, match="1000 s") as caught:
        ask(model, HI)
    assert not caught.value.retryable
    model.close()


def test_silence_is_a_timeout(provider: Provider, wire: str, ask: Ask, clock: RecordingClock) -> None:
    model = LanguageModel(
        wire, "m", api_key=KEY, base_url=f"{provider.url}/v1", clock=clock, timeout=0.05, max_retries=1
    )
    provider.enqueue(make_cut_reply(Reply(), 1, "hold"), make_cut_reply(Reply(), 1, "hold"))
    with pytest.raises(ProviderTimeout, match=r"0\.05 s"):
        ask(model, HI)
    assert len(clock.slept) == 1  # no event was yielded, so the request was repeated
    provider.enqueue(make_cut_reply(Reply(), 5, "hold"), make_cut_reply(Reply(), 5, "hold"))
    with pytest.raises(ProviderTimeout):
        ask(model, HI)
    model.close()


def test_a_server_that_does_not_hang_up_delays_no_reply(provider: Provider, model: LanguageModel) -> None:
    provider.enqueue(lambda wire: Answer(Reply().frames(wire), end="hold"))
    for event in model.stream(HI):
        if event.type == "done":
            break
    else:
        pytest.fail("there was no end")


def test_what_is_sent_after_the_end_is_not_read_for_ever(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    def answer_endlessly(wire: str) -> Answer:
        return Answer(chain(Reply().frames(wire), repeat(b": more\n\n" * 100)))

    provider.enqueue(answer_endlessly)
    assert read_done(ask(model, HI)).message.text == Reply().text


def test_what_breaks_after_the_end_does_not_matter(provider: Provider, model: LanguageModel, ask: Ask) -> None:
    provider.enqueue(lambda wire: Answer(Reply().frames(wire), end="reset"))
    assert read_done(ask(model, HI)).message.text == Reply().text


def test_a_port_without_a_server_is_unavailable(ask: Ask, wire: str, clock: RecordingClock) -> None:
    with Provider() as gone:
        url = gone.url
    model = LanguageModel(wire, "m", api_key=KEY, base_url=url, clock=clock)
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        ask(model, HI)
    assert len(clock.slept) == 2
    model.close()


def test_connections_are_used_again(provider: Provider, model: LanguageModel) -> None:
    for _ in range(3):
        list(model.stream(HI))
    assert len({seen.connection for seen in provider.requests}) == 1

    async def thrice() -> None:
        for _ in range(3):
            assert [event async for event in model.stream_async(HI)]
        await model.close_async()

    asyncio.run(thrice())
    assert len({seen.connection for seen in provider.requests}) == 2


def test_one_model_serves_many_loops_and_threads(provider: Provider, model: LanguageModel) -> None:
    async def gather() -> int:
        async def one() -> int:
            return len([event async for event in model.stream_async(HI)])

        return sum(await asyncio.gather(*(one() for _ in range(5))))

    sizes: list[int] = []
    threads = [threading.Thread(target=lambda: sizes.append(asyncio.run(gather()))) for _ in range(3)]
    threads += [threading.Thread(target=lambda: sizes.append(len(list(model.stream(HI))) * 5)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sizes) == 6
    assert len(set(sizes)) == 1


def test_a_closed_model_can_be_used_again(provider: Provider, model: LanguageModel) -> None:
    list(model.stream(HI))
    model.close()
    model.close()
    assert list(model.stream(HI))[-1].type == "done"


def test_leaving_a_stream_closes_its_connection(provider: Provider, model: LanguageModel) -> None:
    provider.enqueue(make_endless_reply(Reply()), make_endless_reply(Reply()))
    events = model.stream(HI)
    next(events)
    events.close()  # type: ignore[attr-defined]

    async def leave() -> None:
        async with aclosing(model.stream_async(HI)) as events:  # type: ignore[type-var]
            async for _ in events:
                break

    asyncio.run(leave())
    assert list(model.stream(HI))[-1].type == "done"
    assert len({seen.connection for seen in provider.requests}) == 3


def test_cancelling_a_task_leaves_the_client_usable(provider: Provider, model: LanguageModel) -> None:
    provider.enqueue(make_cut_reply(Reply(), 5, "hold"))

    async def cancelled() -> ModelEvent:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in model.stream_async(HI):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [event async for event in model.stream_async(HI)][-1]

    assert asyncio.run(cancelled()).type == "done"


def test_a_forked_child_opens_its_own_connections(provider: Provider, model: LanguageModel) -> None:
    list(model.stream(HI))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if list(model.stream(HI))[-1].type == "done" else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    list(model.stream(HI))
    mine, childs, again = [seen.connection for seen in provider.requests]
    assert mine == again != childs
