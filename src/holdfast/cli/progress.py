"""A progress bar on stderr for work that takes longer than a second; on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

DELAY = 1.0  # seconds without a bar
INTERVAL = 0.1  # seconds between two looks at what is done


class Progress:
    """What is done up to now, in units of the caller's choice."""

    def __init__(self) -> None:
        self.done = 0


@contextmanager
def show_progress(label: str, length: int | None = None) -> Iterator[Progress]:
    """Show a bar while the block runs. The block raises `done`, up to `length` if that is known.

    The bar has a thread of its own, so it also appears while the block waits for one slow call.
    """
    progress = Progress()
    if not sys.stderr.isatty():
        yield progress
        return
    is_over = threading.Event()
    thread = threading.Thread(target=_draw_bar, args=(progress, label, length, is_over), daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        is_over.set()
        thread.join()


def _draw_bar(progress: Progress, label: str, length: int | None, is_over: threading.Event) -> None:
    if is_over.wait(DELAY):
        return
    items = None if length else _items_of_unknown_length()
    with click.progressbar(items, length=length or None, label=label, show_pos=not length, file=sys.stderr) as bar:
        while not is_over.wait(INTERVAL):
            bar.update(progress.done - bar.pos)
        bar.update(progress.done - bar.pos)


def _items_of_unknown_length() -> Iterator[int]:
    """An iterator without a length hint: with it, click shows a count instead of a share."""
    yield from ()
