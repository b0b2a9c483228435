"""Who holds a lease, and whether that process is still there.

A lease names its process so that another one on the same machine need not wait for the time to run out when the holder
is known to be dead. Where that cannot be known (another machine, another container, Windows), only time tells.
"""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from functools import cache

from holdfast.errors import InvalidArgument
from holdfast.log import codec
from holdfast.operating_system import boot_id, pid_namespace, process_mark

DEFAULT_SECONDS = 15.0
MIN_SECONDS, MAX_SECONDS = 0.1, 86_400.0


def lease_seconds() -> float:
    """How long a lease lasts without renewal: `HOLDFAST_LEASE_SECONDS`, or 15. Raises InvalidArgument for a value that
    no lease can have: one without time is lost at once, one without an end is never taken over."""
    text = os.environ.get("HOLDFAST_LEASE_SECONDS", "").strip()
    return _parse_seconds(text) if text else DEFAULT_SECONDS  # compose files set a variable without a value


@cache
def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise InvalidArgument(
            f"HOLDFAST_LEASE_SECONDS={text!r}: use a number of seconds from {MIN_SECONDS:g} to {MAX_SECONDS:g}"
        )
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A wish to become the writer: an append that carries one raises the epoch and takes the lease."""

    holder: bytes
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as a store has it; `remaining` was read off the store's own clock."""

    epoch: int
    holder: bytes
    remaining: float

    @property
    def is_alive(self) -> bool:
        return self.remaining > 0 and not is_dead(self.holder)


@cache
def _process_identity(pid: int) -> dict[str, object]:
    """What tells a process from all others, now and later."""
    return {
        "boot": boot_id(),
        "host": socket.gethostname(),
        "namespace": pid_namespace(),
        "pid": pid,
        "started": process_mark(pid),
    }


def encode_holder(name: str) -> bytes:
    """This process as the holder of a lease; `name` tells its holders apart."""
    return codec.encode({"name": name, **_process_identity(os.getpid())})


def is_dead(data: bytes) -> bool:
    """Whether the holder is known to be gone. Not knowing is not dead."""
    found = codec.decode(data)
    if found["boot"] is None or found["started"] is None:
        return False
    # Machines that were copied while they ran have one boot id, and so have the containers of one machine.
    if (found["boot"], found.get("host")) != (boot_id(), socket.gethostname()):
        return False
    if found["namespace"] is None or found["namespace"] != pid_namespace():
        return False
    return bool(process_mark(found["pid"]) != found["started"])
