"""Every error has a code, a status, its facts and a text, and keeps them in another process: by pickle and by JSON."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

import holdfast
from holdfast import errors
from holdfast.client.errors import error_from_json
from holdfast.errors import AgentError, KeyNeeded, SchemaTooNew, StoreError
from holdfast.server.errors import error_body, public_text

SAMPLES: dict[str, Callable[[], AgentError]] = {
    "AgentExists": lambda: errors.AgentExists("a-1"),
    "AgentFromCode": lambda: errors.AgentFromCode("a-1"),
    "AlreadyAdmitted": errors.AlreadyAdmitted,
    "ApprovalPending": lambda: errors.ApprovalPending("s-1", ["call_1", "call_2"]),
    "BadArguments": lambda: errors.BadArguments("add", ["'x' is missing", "'y' is not a number"]),
    "BodyTooLarge": lambda: errors.BodyTooLarge(100, "lines"),
    "BudgetExceeded": lambda: errors.BudgetExceeded("dollars", used=1.5, limit=1.0),
    "Conflict": lambda: errors.Conflict("s-1", expected=3, head=4, name="color"),
    "EventsLost": lambda: errors.EventsLost("s-1", expected=7, head=6, lost=5),
    "FileRefused": lambda: errors.FileRefused("a/../b", "'..' is not allowed"),
    "HandoffLoop": lambda: errors.HandoffLoop("sales", "support"),
    "ImmutableSession": lambda: errors.ImmutableSession("delete", until=1_700_000_000_000_000, ttl_days=3.5),
    "InstructionsFailed": lambda: errors.InstructionsFailed("tone", agent="writer", reason="raised ValueError"),
    "KeyInUse": lambda: errors.KeyInUse("k-1"),
    "KeyReused": lambda: errors.KeyReused("s-1", "k-1"),
    "LifecycleError": lambda: errors.LifecycleError("run", status="closed", legal=["reopen", "archive"]),
    "LimitExceeded": lambda: errors.LimitExceeded("the state", size=11, limit=10, hint="store less"),
    "MaxStepsExceeded": lambda: errors.MaxStepsExceeded(20),
    "MissingExtra": lambda: errors.MissingExtra("PostgresStore", "postgres"),
    "MissingState": lambda: errors.MissingState("color"),
    "NotFound": lambda: errors.NotFound("run", "r-1"),
    "NothingToRetry": errors.NothingToRetry,
    "NothingPending": lambda: errors.NothingPending("call_1", ["call_2"]),
    "QueueFull": lambda: errors.QueueFull(10),
    "RequestTimeout": lambda: errors.RequestTimeout(2.5),
    "RoutingError": lambda: errors.RoutingError("no agent could answer", ["a: broke", "b: broke"]),
    "SchemaValidationError": lambda: errors.SchemaValidationError("'x' is missing", text="{}", tries=2),
    "ScriptExhausted": lambda: errors.ScriptExhausted(2),
    "SearchUnavailable": lambda: errors.SearchUnavailable("s-1"),
    "SessionBusy": lambda: errors.SessionBusy("s-1", retry_after=2.5),
    "SessionExists": lambda: errors.SessionExists("s-1"),
    "SessionHeld": lambda: errors.SessionHeld("delete", reason="case 12"),
    "SessionMismatch": lambda: errors.SessionMismatch("s-1", "user"),
    "QuotaExceeded": lambda: errors.QuotaExceeded(
        "tokens_per_day", limit=9, used=10, user_id="u", resets_at="2030-01-02T00:00:00Z", retry_after=5.0
    ),
    "SessionNotFound": lambda: errors.SessionNotFound("s-1"),
    "StaleEpoch": lambda: errors.StaleEpoch("s-1", epoch=1, current=2),
    "TooManyRequests": lambda: errors.TooManyRequests("this key asks too often", retry_after=0.5),
    "TurnCancelled": errors.TurnCancelled,
    "TurnOpen": lambda: errors.TurnOpen("rewind"),
    "TurnParked": lambda: errors.TurnParked("s-1", 3),
    "Unauthorized": errors.Unauthorized,
    "Unavailable": lambda: errors.Unavailable("the server stops", retry_after=3.0),
    "UnsupportedMediaType": errors.UnsupportedMediaType,
    "ViewChanged": errors.ViewChanged,
    "WrongApprover": lambda: errors.WrongApprover("call_1", "alice", ["boss"]),
}
PROVIDER = {"provider": "openai", "http_status": 429, "retryable": True, "retry_after": 2.5}


def list_classes() -> dict[str, type[AgentError]]:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, AgentError)}


CLASSES = list_classes()


def make_sample(name: str) -> AgentError:
    """An error of this class, with all of its facts."""
    if name in SAMPLES:
        return SAMPLES[name]()
    if issubclass(CLASSES[name], errors.ProviderError):
        return CLASSES[name]("the provider failed: try again", **PROVIDER)  # type: ignore[call-arg]
    return CLASSES[name]("the text: do this next")


def assert_same(copied: AgentError, error: AgentError) -> None:
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert copied.args == error.args
    assert (copied.code, copied.status) == (error.code, error.status)
    assert vars(copied) == vars(error)
    assert copied.details == error.details


def assert_pickles(error: AgentError) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_same(pickle.loads(pickle.dumps(error, protocol)), error)
    assert_same(copy.copy(error), error)
    assert_same(copy.deepcopy(error), error)


class BrokenInit(AgentError, code="broken_init"):
    """An error that the default way to pickle cannot rebuild: it calls the constructor with the text alone."""

    def __init__(self, what: str, *, size: int) -> None:
        self.what, self.size = what, size
        super().__init__(f"{what} has {size} bytes")


class DefaultPickle(BrokenInit):
    """The same error, pickled the default way."""

    __reduce__ = Exception.__reduce__  # type: ignore[assignment]


def raise_sample(name: str) -> None:
    raise make_sample(name)


# -- in one process ----------------------------------------------------------------------------------------------------


def test_all_errors_are_in_one_module() -> None:
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    strangers, queue = [], [AgentError]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind.__module__.startswith("holdfast.") and kind.__module__ != "holdfast.errors":
            strangers.append(f"{kind.__module__}.{kind.__name__}")
    assert strangers == []


def test_the_tree_in_the_docstring_names_every_class_under_its_base() -> None:
    tree = re.sub(r"[│\s]+", " ", (errors.__doc__ or "").partition("\nAgentError\n")[2])
    for line in re.split(r"[├└]─ ", tree)[1:]:
        base, _, names = line.partition(": ") if ": " in line else ("", "", line)
        base = base.removesuffix(" (also a ValueError)")
        expected = CLASSES.get(base, AgentError)
        for name in filter(None, re.split(r"[,\s]+", names)):
            assert CLASSES[name].__bases__[0] is expected, name
    for name in CLASSES:
        assert re.search(rf"\b{name}\b", errors.__doc__ or ""), name


def test_every_error_has_a_code_and_a_status_of_its_own() -> None:
    codes: dict[str, str] = {}
    for name, kind in CLASSES.items():
        assert 400 <= kind.status < 600, name
        assert codes.setdefault(kind.code, name) == name, f"{name} and {codes[kind.code]} share a code"


@pytest.mark.parametrize("name", CLASSES)
def test_the_facts_are_attributes_and_the_text_uses_them(name: str) -> None:
    error = make_sample(name)
    assert str(error)
    for fact in errors._fact_names(type(error)):
        assert getattr(error, fact) is not None, fact


def test_a_subclass_of_a_user_may_name_its_code_as_an_attribute() -> None:
    class Mine(errors.ToolError):
        code, status = "mine", 418

    assert (Mine("x").code, Mine("x").status) == ("mine", 418)


def test_notes_and_other_private_attributes_are_no_facts() -> None:
    error = errors.SessionNotFound("s-1")
    error.add_note("a secret")
    assert error.details == {"session_id": "s-1"}


# -- pickle ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_pickles_and_copies_with_its_facts(name: str) -> None:
    assert_pickles(make_sample(name))


def test_the_check_finds_a_class_that_cannot_be_unpickled() -> None:
    assert_pickles(BrokenInit("the state", size=3))
    with pytest.raises(TypeError, match="size"):
        assert_pickles(DefaultPickle("the state", size=3))


def test_a_pickled_error_keeps_its_notes_and_what_was_set_later() -> None:
    error = errors.from_code("of_the_future", "text", {"seats": 3})
    error.status = 418
    error.add_note("seen twice")
    assert_pickles(error)
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen twice"]


def test_a_pickled_error_keeps_the_text_of_its_cause() -> None:
    class Local(Exception):  # pickle finds no class that is local to a function
        pass

    error = errors.StoreBusy("the database is locked: try again")
    error.__cause__ = Local("locked by 12")
    found = pickle.loads(pickle.dumps(error))
    assert str(found.__cause__) == "Local: locked by 12"
    assert str(pickle.loads(pickle.dumps(found)).__cause__) == "Local: locked by 12"

    error.__cause__ = errors.SessionBusy("s-1", retry_after=1.0)
    found = pickle.loads(pickle.dumps(error))
    assert_same(found.__cause__, error.__cause__)


def test_every_error_of_a_worker_process_arrives() -> None:
    # A pool that cannot rebuild an error waits for ever: hence the time-outs.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = {name: pool.apply_async(raise_sample, (name,)) for name in CLASSES}
        for name, result in results.items():
            with pytest.raises(AgentError) as caught:
                result.get(timeout=60)
            assert_same(caught.value, make_sample(name))


# -- JSON --------------------------------------------------------------------------------------------------------------


def send_as_json(error: AgentError) -> Any:
    """The error as a client of the server gets it."""
    status, body = error_body(error, "request-1")
    return error_from_json(orjson.loads(orjson.dumps(body)), status)


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_arrives_at_a_client_with_its_facts(name: str) -> None:
    error = make_sample(name)
    found = send_as_json(error)
    assert type(found) is type(error)
    assert (str(found), found.code, found.status) == (public_text(error), error.code, error.status)
    is_about_a_place = isinstance(error, StoreError) and not isinstance(error, SchemaTooNew | KeyNeeded)
    assert (str(error) in str(found)) is not is_about_a_place
    assert getattr(found, "request_id", None) == "request-1"
    content = {"problem", "text"} if name == "SchemaValidationError" else set()  # it quotes the model's reply
    for fact, value in vars(error).items():
        assert getattr(found, fact) == (value if fact not in content else ""), fact


def test_a_fact_that_is_too_long_to_send_is_none() -> None:
    found = send_as_json(errors.RoutingError("no agent could answer", ["x" * 501]))
    assert found.causes is None
    assert found.what == "no agent could answer"


def test_an_error_of_a_newer_server_keeps_its_code_status_and_facts() -> None:
    found = error_from_json({"error": "text", "code": "of_the_future", "details": {"seats": 3, "_x": 1}}, 418)
    assert type(found) is AgentError
    assert (str(found), found.code, found.status, found.seats) == ("text", "of_the_future", 418, 3)  # type: ignore[attr-defined]
    assert not hasattr(found, "_x")
