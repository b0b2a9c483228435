"""Waiting for an answer that takes as long as a run does."""

from __future__ import annotations

from typing import Any

from holdfast.client.errors import Silence
from holdfast.client.requests import Call, Flow, get
from holdfast.errors import AgentError


def patiently(call: Call) -> Flow[Any]:
    """The answer to a call that waits for a run. A server that is silent but alive is asked again, under the same key:
    that attaches to the same run, however long it takes."""
    while True:
        try:
            return (yield call)
        except Silence:
            yield get("/health")  # raises if nobody is there any more
        except AgentError as error:
            if error.code != "key_in_use":
                raise
