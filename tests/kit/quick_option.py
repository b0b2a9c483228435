"""`pytest --quick`: the tests that need no server, no PostgreSQL and no other process, each asked one way."""

from __future__ import annotations

import pytest

# Parameters of tests that run on memory or SQLite as well, or are asked in another way.
LEFT_OUT_PARAMETERS = {"postgres", "documents", "server", "run_async", "stream", "stream_async", "awaited"}
LEFT_OUT_FIXTURES = {
    *("postgres_server", "database", "shared_postgres", "listener", "local_server", "client"),
    *("run_server", "secured_server", "agent_host"),
}
# Folders and files that start servers and processes, or wait for a clock, in most of their tests.
LEFT_OUT_PATHS = (
    *("benchmarks/", "cli/", "client/", "docs/", "kit/", "other_systems/", "properties/test_h", "server/"),
    "tools/test_sandbox",
)
LEFT_OUT_WORDS = ("kill", "outage", "equivalence", "llmock", "test_rebuild")


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="no server, no PostgreSQL, one way of asking: a minute")


def keep_quick_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        quick = [item for item in items if _is_quick(item)]
        config.hook.pytest_deselected(items=[item for item in items if not _is_quick(item)])
        items[:] = quick


def _is_quick(item: pytest.Item) -> bool:
    path = item.nodeid.partition("::")[0].removeprefix("tests/")
    if path.startswith(LEFT_OUT_PATHS) or any(word in path for word in LEFT_OUT_WORDS):
        return False
    if LEFT_OUT_FIXTURES & set(getattr(item, "fixturenames", ())):
        return False
    spec = getattr(item, "callspec", None)
    return spec is None or not any(
        isinstance(value, str) and value in LEFT_OUT_PARAMETERS for value in spec.params.values()
    )
