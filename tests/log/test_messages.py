"""Messages: both of their forms give back everything, bytes included."""

from __future__ import annotations

import json

from hypothesis import given

from holdfast import Message
from holdfast.log import codec
from holdfast.log.messages import Limits, blobs_in, message_from_data
from tests.properties.values import messages


@given(messages)
def test_the_form_users_see_round_trips_through_json(message: Message) -> None:
    again = Message.of(json.loads(json.dumps(message.to_dict())))
    assert again == message
    assert again.created_at == message.created_at
    assert again.text == message.text
    assert again.to_dict() == message.to_dict()


@given(messages)
def test_the_form_in_the_log_round_trips_through_the_codec(message: Message) -> None:
    data, blobs = message.to_data(Limits())
    stored = codec.decode(codec.encode(data))
    again = message_from_data(stored, blobs.__getitem__, author=message.named_author)
    assert again == message
    assert again.created_at == message.created_at
    assert sorted(set(blobs_in(stored))) == sorted(blobs)


@given(messages)
def test_no_bytes_are_in_the_log_itself(message: Message) -> None:
    codec.encode(message.to_data(Limits())[0])  # would refuse them
