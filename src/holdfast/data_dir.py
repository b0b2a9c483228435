"""The directory in which a user's server keeps its data; the client finds the server's token there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def data_directory(environ: Mapping[str, str]) -> Path:
    """The data directory of this user, by the XDG rules."""
    base = environ.get("XDG_DATA_HOME", "")
    if Path(base).is_absolute():  # the specification has relative ones ignored
        return Path(base) / "holdfast"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "share" / "holdfast"
