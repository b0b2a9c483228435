"""`HOLDFAST_LEASE_SECONDS`: a value that no lease can have is refused before anything is stored."""

from __future__ import annotations

import pytest

from holdfast import Agent
from holdfast.errors import InvalidArgument
from holdfast.server.config import Config
from holdfast.stores import MemoryStore
from holdfast.stores.lease import DEFAULT_SECONDS, lease_seconds


@pytest.mark.parametrize("value", ["0", "-1", "inf", "-inf", "nan", "soon", "1e9", "0.0"])
def test_a_value_that_no_lease_can_have_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", value)
    session = Agent(provider="echo", store=MemoryStore()).session()
    with pytest.raises(InvalidArgument, match="HOLDFAST_LEASE_SECONDS"):
        session.run("hello")
    assert len(session) == 0
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "5")
    assert session.run("hello").text


@pytest.mark.parametrize("value", ["", "  "])
def test_a_variable_without_a_value_is_not_set(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", value)
    assert lease_seconds() == DEFAULT_SECONDS
    assert Agent(provider="echo", store=MemoryStore()).session().run("hello").text


NUMBERS = ["0", "-1", "inf", "nan", "x"]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("variable", ["HOLDFAST_RUNS", "HOLDFAST_QUEUE", "HOLDFAST_BODY_SECONDS", "HOLDFAST_PING"])
def test_a_setting_of_the_server_that_makes_no_sense_is_refused(variable: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"HOLDFAST_|--"):
        Config.from_env({variable: value}).check()


def test_every_setting_of_the_server_may_be_empty() -> None:
    from holdfast.server.config import SETTINGS

    for blank in ("", "  "):
        empty = {setting.variable: blank for setting in SETTINGS if setting.variable}
        assert Config.from_env(empty) == Config.from_env({})
