"""Places in a flow: which agent of several a part of a turn belongs to.

A path is digits and marks: `1` is the second agent of a flow, `1/0` the first one of a flow inside of it, `2.0` the
first one of a loop's third round, `1+1` the agent that `1` handed over to. The branch of an event is the path of the
parallel agent under which it happened. The order of the paths is the order of the conversation.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")


def path_sort_key(path: str) -> tuple[int, ...]:
    """What paths are sorted by."""
    return tuple(map(int, _NUMBER.findall(path)))


def is_within(path: str, outer: str) -> bool:
    """Whether a path is `outer` itself, or lies inside of it."""
    return path == outer or not outer or (path.startswith(outer) and path[len(outer)] in "/+")


def child_path(path: str, step: str) -> str:
    """The path of a step of what is at `path`."""
    return f"{path}/{step}" if path else step


def outer_path(branch: str) -> str:
    """The path of the agents at the same time that a branch is one of."""
    return branch.rpartition("/")[0]


def handoff_root(path: str) -> str:
    """The place whose conversation was handed on to `path`."""
    head, mark, tail = path.rpartition("+")
    return head if mark and tail.isdigit() else path
