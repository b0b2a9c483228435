"""The file behind an image or a file part: its bytes, within a limit, and its media type."""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from holdfast.errors import InvalidArgument, LimitExceeded

_MORE_TYPES = {  # types that not every version of Python knows
    ".log": "text/plain",
    ".md": "text/markdown",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


def read_media_file(path: str | os.PathLike[str], limit: int) -> tuple[str, bytes]:
    """Return the name and the bytes of a file. A file above the limit is refused before it is read."""
    file = Path(path)
    try:
        with file.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            data = source.read(limit + 1) if size <= limit else b""
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    size = max(size, len(data))  # it may have grown since
    if size > limit:
        raise LimitExceeded(file.name, size=size, limit=limit, hint="send it by url= instead")
    return file.name, data


def guess_media_type(name: str) -> str:
    """Return the media type that the suffix of a file name stands for."""
    found, encoding = mimetypes.MimeTypes().guess_type(name, strict=False)
    found = _MORE_TYPES.get(Path(name).suffix.lower(), found)
    if found is None or encoding is not None:
        raise InvalidArgument(f"the name {name!r} does not tell its media type: give media_type=, as in 'text/plain'")
    return found
