"""Server-sent events, cut out of bytes as they arrive.

Only the data of an event matters here: both wire formats name the event inside it as well. Lines may end in LF, CRLF
or CR, and a chunk may end anywhere, also inside a character; the frames are the same however the bytes were cut.
"""

from __future__ import annotations


class ReplyTooLong(Exception):
    """More bytes came than one reply may have."""


class MalformedLine(Exception):
    """A line that is no field of an event. Skipping it, as browsers do, would lose a piece of a reply in silence."""


_FIELDS = (b":", b"event:", b"id:", b"retry:")


class SSEParser:
    """The data of each event in a stream of bytes."""

    __slots__ = ("_after_cr", "_data", "_pieces", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self._pieces: list[bytes] = []  # a line whose end has not come yet; joined once, or a long one costs its square
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        self.taken += len(chunk)
        if self.taken > self.limit:
            raise ReplyTooLong
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:  # the second half of a CRLF
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._pieces.append(chunk)
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
        lines = chunk.split(b"\n")
        rest = lines.pop()
        self._pieces = [rest] if rest else []
        found: list[bytes] = []
        data = self._data
        for line in lines:
            if line:
                if line.startswith(b"data: "):
                    data.append(line[6:])
                elif line.startswith(b"data:"):
                    data.append(line[5:])
                elif not line.startswith(_FIELDS):
                    raise MalformedLine
            elif data:
                found.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        return found

    @property
    def incomplete_data(self) -> bytes:
        """What has come of an event that is not complete."""
        line = b"".join(self._pieces)
        if line.startswith(b"data:"):
            line = line[5:].strip()
        elif line.startswith(_FIELDS):
            line = b""
        return b"\n".join(piece for piece in (*self._data, line) if piece)
