"""A test that is asked in several ways is asked in all of them on SQLite, and in one of them on each other store.

Which one depends on the name of the test, so every way is asked on every store by some test. `--all-ways` asks each
test in each way on each store: 2,400 tests more.
"""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest

WAYS = {"run", "run_async", "stream", "stream_async", "blocking", "awaited"}
OTHER_STORES = {"memory", "postgres", "documents", "server"}


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--all-ways", action="store_true", help="ask in every way on every store")


def keep_one_way(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.all_ways or config.option.keyword:
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = _name_without_way(item)
        if name is not None:
            groups[name].append(item)
    left_out = set[pytest.Item]()
    for name, group in groups.items():
        kept = group[crc32(name.encode()) % len(group)]
        left_out.update(item for item in group if item is not kept)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _name_without_way(item: pytest.Item) -> str | None:
    """Return what the tests of a group have in common; None for a test on SQLite, or with one way."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return None
    names = {name: value for name, value in spec.params.items() if isinstance(value, str)}
    ways = {name for name, value in names.items() if value in WAYS}
    if not ways or not OTHER_STORES & set(names.values()):
        return None
    rest = [f"{name}={spec.indices[name]}" for name in sorted(spec.params) if name not in ways]
    return f"{item.nodeid.partition('[')[0]} {' '.join(rest)}"
