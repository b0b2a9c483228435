"""Whether the data of a store is sound: a check of the pages of a SQLite file, and of the chains of some sessions."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import AgentError, WrongKey
from holdfast.stores.restoration import find_page_damage, list_log_numbers, open_copy, verify_logs

if TYPE_CHECKING:
    from holdfast.stores.base import Store

PROGRESS_STEPS = 100_000  # steps of SQLite's machine between two looks at the clock


def check_pages(file: Path, seconds: float) -> str | None:
    """Return what is wrong with the pages of a SQLite file; None if nothing is. Raises TimeoutError if the check takes
    longer than this."""
    import apsw

    deadline = time.monotonic() + seconds
    with open_copy(file) as db:
        db.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
        try:
            return find_page_damage(db)
        except apsw.InterruptError as error:
            raise TimeoutError from error
        except apsw.Error as error:
            return str(error)


def check_sessions(store: Store, count: int, seconds: float) -> tuple[int, list[str]]:
    """Verify some sessions: the newest, and others at random. Returns how many were verified, and what is wrong."""
    from holdfast.stores.sql_store import SQLStore

    assert isinstance(store, SQLStore)
    deadline = time.monotonic() + seconds
    checked, wrong = 0, list[str]()
    try:
        for found in verify_logs(store, _choose(list_log_numbers(store, "session"), count)):
            checked += 1
            if found is not None:
                wrong.append(f"session {found.id!r}: {found.reason}")
            if time.monotonic() > deadline:
                break
    except WrongKey:
        raise
    except AgentError as error:
        wrong.append(str(error))
    return checked, wrong


def _choose(numbers: Sequence[int], count: int) -> list[int]:
    """Half of the count from the beginning, and the rest at random."""
    newest, others = list(numbers[: (count + 1) // 2]), list(numbers[(count + 1) // 2 :])
    return newest + random.sample(others, min(len(others), count - len(newest)))
