"""Export, import and verification of a session. An import is refused unless the hash chain of the export verifies.

The first line of an export names the last event, so that a file without its end does not verify.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import AgentError, CorruptLog, InvalidArgument, NotJSON, SchemaTooNew
from holdfast.log import chain, codec
from holdfast.log.events import (
    COMMITMENT_SIZE,
    MESSAGE_TYPES,
    PAYLOAD_AT,
    VERSIONS,
    Draft,
    Event,
    Row,
    message_data,
    payload_of,
)
from holdfast.log.identifiers import check_id, check_owner, is_id
from holdfast.log.lines import one_line
from holdfast.log.messages import Message, Text, Thinking, ToolCall, ToolResult, message_from_data
from holdfast.log.view import decode_view
from holdfast.policy import event_rules
from holdfast.stores import verification
from holdfast.stores.messages import blob_names, blobs_removed, message_of
from holdfast.stores.signing_keys import PublicKeys, SignedHead, SigningKey
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.stores.base import Log, SessionStore, Store

FORMATS = ("jsonl", "markdown", "html")
EXPORT_VERSION = 1

READABLE_FIELDS = ("role", "message", "metadata", "tool_calls", "timestamp")
LINE_FIELDS = {
    *READABLE_FIELDS,
    *("seq", "type", "at", "v", "run", "branch", "author", "actor", "verified"),
    *("hash", "commitment", "salt", "data", "blobs", "log"),
}


class ExportMethods:
    """The methods of `Session` for export: `verify`, `export`, `import_`."""

    store: Store
    log: Log

    if TYPE_CHECKING:

        @classmethod
        def on_log(cls, store: Store, log: Log, agent: Agent | None = None) -> Self: ...
        @property
        def messages(self) -> list[Message]: ...
        @property
        def title(self) -> str | None: ...

    def verify(self, public_key: str | Iterable[str] | None = None) -> chain.Verification:
        """Check the hash chain of the whole log. The result is false and names the first altered event, if any.

        With `public_key`, one or several, the log must also have the head that was signed last with one of them. That
        finds history that was rewritten with its whole chain, and a log that lost its end.
        """
        if public_key is None:
            return self.store.verify(self.log)
        found = self.store.verify(self.log, PublicKeys.of(public_key))
        if not found or found.signed is not None:
            return found
        reason = "the log has no signed head: it is new and not signed yet, or its signature was removed"
        return chain.Verification(ok=False, checked=found.checked, reason=reason)

    def export(self, format: str = "jsonl") -> str:
        """Return the whole log as JSON lines, which verify without a database; or the messages as Markdown or HTML."""
        if format == "jsonl":
            return export_jsonl(self.store, self.log)
        if format == "markdown":
            return _render_markdown(self.title or self.log.id, self.messages)
        if format == "html":
            return _render_html(self.title or self.log.id, self.messages)
        raise InvalidArgument(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")

    @classmethod
    def import_(
        cls,
        source: str | Path,
        *,
        session_id: str | None = None,
        store: Store | SessionStore | str | None = None,
        agent: Agent | None = None,
    ) -> Self:
        """Create a session with the whole log of a jsonl export, given as text or as a path.

        Raises CorruptLog, before anything is stored, if the hash chain of the export does not verify, or if an event is
        not as holdfast writes it. An import is a record: it brings no open turn, queue, retention or legal hold.
        """
        if isinstance(source, Path):
            with source.open("rb") as file:
                exported = read_lines(file)
        else:
            exported = read_jsonl(source)
        verdict = exported.verify()
        if not verdict:
            raise CorruptLog(f"the export does not verify: {verdict.reason}")
        found = open_store(store)
        name = check_id(session_id if session_id is not None else exported.id)
        log = found.import_log(
            "session",
            name,
            exported.origin,
            exported.rows,
            exported.blobs,
            [Draft(type="session.imported", data=exported.record_data())],
            user_id=exported.user_id,
            app_name=exported.app_name,
        )
        return cls.on_log(found, log, agent)


# -- JSON lines --------------------------------------------------------------------------------------------------------


def export_jsonl(store: Store, log: Log) -> str:
    """Return the lines of `export_lines` as one text."""
    return b"".join(export_lines(store, log)).decode()


def export_lines(store: Store, log: Log) -> Iterator[bytes]:
    """Yield one line for each event. The first line also describes the log, so that the file needs no database."""
    removed = verification.blobs_removed(store, log)
    seen = set(removed)
    end = store.head(log)
    unverified = decode_view(end.view).unverified
    key = SigningKey.from_environment()
    before = None if key is None else store.signed_head(log)
    hashes: dict[int, str] = {}
    for row in store.walk(log, 1, end.head):
        event = Event(row, unverified=unverified)
        if before is not None and row.seq == before.seq:
            hashes[row.seq] = row.hash.hex()
        line: dict[str, Any] = {
            "seq": row.seq,
            "timestamp": event.timestamp.isoformat(),
            "type": event.type,
            "role": None,
            "message": None,
            "metadata": {},
            "tool_calls": [],
            "at": row.at,
            "v": event.v,
            "run": event.run,
            "branch": event.branch,
            "author": event.author,
            "actor": event.actor,
            "verified": event.verified,
            "hash": row.hash.hex(),
        }
        if event.body is None:
            line["commitment"] = (event.tombstone or b"").hex()
        else:
            # The hash covers the bytes of canonical JSON, so decoding and encoding the payload gives the same bytes.
            line |= {"salt": event.body[:PAYLOAD_AT].hex(), "data": codec.decode(payload_of(event.body, row.seq))}
        if event.type in MESSAGE_TYPES and message_data(event):
            line |= _message_fields(message_of(store, log, row))
        new = [digest for digest in blob_names([row]) if digest not in seen]
        if new:
            seen.update(new)
            line["blobs"] = {digest: base64.b64encode(store.blob(log, digest)).decode() for digest in new}
        if row.seq == 1:
            line["log"] = {
                "version": EXPORT_VERSION,
                "id": log.id,
                "origin": log.origin,
                "user_id": log.user_id,
                "app_name": log.app_name,
                "removed": sorted(removed),
                "head": end.head,
                "hash": end.hash.hex(),
            }
        yield codec.encode(line, room=codec.WRAPPING_DEPTH) + b"\n"
    # What contradicts the last signature of its log is exported, and not signed: verify() says what is wrong with it.
    if key is not None and (before is None or hashes.get(before.seq) == before.hash):
        signed = key.sign_head(store.tenant, log, seq=end.head, hash=end.hash, at=store.clock.now())
        yield codec.encode({"signed": signed.to_dict()}) + b"\n"


def _message_fields(message: Message) -> dict[str, Any]:
    """Return the fields of an export line that show the message to a person."""
    found = message.to_dict()
    content = found["content"]
    return {
        "role": found["role"],
        "message": content if isinstance(content, str) else _plain_text(content),
        "metadata": found.get("metadata", {}),
        "tool_calls": found.get("tool_calls", []),
    }


def _plain_text(content: object) -> str | None:
    if not isinstance(content, list):
        return None
    return "".join(part.get("text", part.get("content", "")) for part in content)


class JsonlExport:
    """A parsed jsonl export. It is not verified until `verify` returns true."""

    def __init__(
        self,
        about: dict[str, Any],
        rows: list[Row],
        blobs: dict[str, bytes],
        line_fields: list[dict[str, Any]],
        cut_line: int | None = None,
        signed: SignedHead | None = None,
    ) -> None:
        self.signed = signed  # the last line; not checked before `verify` is given keys
        self._line_fields = line_fields  # of each line, the fields that a person reads
        self._cut_line = cut_line  # the number of a last line that ends too early
        self._head: int | None = about.get("head")  # the number of the last event; None: an older holdfast wrote it
        self._head_hash = None if self._head is None else bytes.fromhex(about["hash"])
        self.id: str = about["id"]
        self.origin: str = about["origin"]
        self.user_id: str | None = about.get("user_id")
        self.app_name: str | None = about.get("app_name")
        self.removed_blobs: list[str] = about.get("removed", [])  # digests of blobs that a redaction removed
        self.rows, self.blobs = rows, blobs

    def record_data(self) -> dict[str, Any]:
        """What the log of an imported session says of its import. A signed head that came with the file is kept as the
        claim of its signer; this log is signed with the keys of its own store."""
        signed = {} if self.signed is None else {"signed": self.signed.to_dict()}
        return {"from": self.id, "blobs": self.removed_blobs} | signed

    @property
    def is_end_known(self) -> bool:
        """Whether the export names its last event. If not, an export without its last lines verifies."""
        return self._head is not None

    def verify(self, keys: PublicKeys | None = None) -> chain.Verification:
        """Check the hash chain, what each event says, the bytes of every blob, and that the readable fields of each
        line match its event.

        With keys, the last line must also be a head of the last event, signed with one of them.
        """
        found = self._verify_lines()
        if not found or not keys:
            return found
        if self.signed is None:
            flaw: str | None = "the file has no signed head as its last line"
        elif (self.signed.seq, self.signed.hash) != (self.rows[-1].seq, self.rows[-1].hash.hex()):
            flaw = f"the signed head is that of event {self.signed.seq}, not that of the last event"
        else:
            flaw = keys.find_flaw(self.signed)
            flaw = flaw and f"the signed head does not count: {flaw}"
        if flaw is None:
            return replace(found, signed=found.checked)
        return chain.Verification(ok=False, checked=found.checked, first_bad=found.checked + 1, reason=flaw)

    def _verify_lines(self) -> chain.Verification:
        found = self._verify_chain()
        if found:
            fault = event_rules.find_fault(self.rows, self.blobs)
            if fault is not None:
                return chain.Verification(ok=False, checked=fault[0] - 1, first_bad=fault[0], reason=fault[1])
            removed = {*blobs_removed(self.rows), *self.removed_blobs}
            for row in self.rows:
                for digest in blob_names([row]):
                    if digest not in removed and sha256(self.blobs.get(digest, b"")).hexdigest() != digest:
                        reason = f"the bytes of event {row.seq} are missing or altered"
                        return chain.Verification(ok=False, checked=row.seq - 1, first_bad=row.seq, reason=reason)
            unverified = _find_unverified(self.rows)
            for row, fields in zip(self.rows, self._line_fields, strict=True):
                said = self._fields_of_row(row, unverified)
                if fields != {name: said[name] for name in fields}:
                    reason = f"what line {row.seq} tells a reader is not what event {row.seq} says"
                    return chain.Verification(ok=False, checked=row.seq - 1, first_bad=row.seq, reason=reason)
        return found

    def _verify_chain(self) -> chain.Verification:
        if self._cut_line is None:
            return chain.verify(self.origin, self.rows, head=self._head, hash=self._head_hash)
        found = chain.verify(self.origin, self.rows)
        if not found:
            return found
        reason = f"line {self._cut_line} is cut off: the file ends inside it"
        return chain.Verification(ok=False, checked=found.checked, first_bad=found.checked + 1, reason=reason)

    def _fields_of_row(self, row: Row, unverified: int) -> dict[str, Any]:
        """Return the readable fields that the line of this row must have."""
        event = Event(row, unverified=unverified)
        fields: dict[str, Any] = {"role": None, "message": None, "metadata": {}, "tool_calls": []}
        data = message_data(event) if event.type in MESSAGE_TYPES else {}
        if data:
            fields = _message_fields(message_from_data(data, lambda digest: self.blobs[digest], author=event.author))
        return fields | {"timestamp": event.timestamp.isoformat(), "verified": event.verified}


def _find_unverified(rows: list[Row]) -> int:
    """The number of the last event that an import brought, as the view of the log has it."""
    found = 0
    for row in rows:
        if row.type == "session.imported":
            found = row.seq
        elif row.type == "session.forked":
            found = max(found, Event(row).data.get("unverified", 0))
    return found


def read_jsonl(text: str) -> JsonlExport:
    """Parse the text of a jsonl export, as `read_lines` does."""
    return read_lines(io.StringIO(text, newline="\n"))


def read_lines(lines: Iterable[str | bytes]) -> JsonlExport:
    """Parse the lines of a jsonl export, each with its line end, without verifying it.

    Raises InvalidArgument for a line that is not part of an export, and SchemaTooNew for an export of a newer version.
    A last line that has no line end and is no JSON was cut: `verify` reports it.
    """
    about: dict[str, Any] | None = None
    rows: list[Row] = []
    blobs: dict[str, bytes] = {}
    line_fields: list[dict[str, Any]] = []
    tokens = 0
    signed: SignedHead | None = None
    for number, text_line in enumerate(lines, 1):
        if not text_line.strip():
            continue
        if signed is not None:
            raise InvalidArgument(f"line {number} comes after the signed head, which is the last line of an export")
        try:
            line = codec.parse(text_line, room=codec.WRAPPING_DEPTH)
        except NotJSON as error:
            if about is not None and text_line[-1:] not in ("\n", b"\n"):
                return JsonlExport(about, rows, blobs, line_fields, cut_line=number)
            raise _bad_line_error(number, error) from error
        if about is not None and isinstance(line, dict) and line.keys() == {"signed"}:
            signed = SignedHead.from_dict(line["signed"])
            continue
        try:
            about = about or _read_log_header(line)
            unknown = line.keys() - LINE_FIELDS
            if unknown:
                raise NotJSON(f"an export has no field {min(unknown)!r}")
            row = _parse_row(line, tokens)
            tokens = row.tokens
            rows.append(row)
            fields = {name: line[name] for name in READABLE_FIELDS}
            if "verified" in line:  # an older holdfast did not write it
                fields["verified"] = line["verified"]
            line_fields.append(fields)
            for digest, data in line.get("blobs", {}).items():
                blobs[digest] = base64.b64decode(data, validate=True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, SchemaTooNew):
                raise
            raise _bad_line_error(number, error) from error
    if about is None:
        raise InvalidArgument("the export is empty")
    return JsonlExport(about, rows, blobs, line_fields, signed=signed)


def _bad_line_error(number: int, error: Exception) -> InvalidArgument:
    """Return the error about a line that is not part of an export, in words for a person."""
    if isinstance(error, KeyError):
        why = f"{error} is missing"
    else:
        why = str(error) if isinstance(error, AgentError) else "a value is not as in an export"
    return InvalidArgument(
        f"line {number} is not a line of a jsonl export: {why}. Give what session.export() returned, as text or as a "
        "Path"
    )


def _read_log_header(line: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = line["log"]
    if about["version"] > EXPORT_VERSION:
        raise SchemaTooNew(
            f"the export has version {about['version']}, this holdfast knows {EXPORT_VERSION}: upgrade it"
        )
    if not is_id(about["id"]) or not is_id(about["origin"]):
        raise NotJSON("the first line must say which log it is")
    for name in ("user_id", "app_name"):
        check_owner(about.get(name), name)
    removed = about.get("removed", [])
    if type(removed) is not list or not all(isinstance(digest, str) for digest in removed):
        raise NotJSON("'removed' of the first line must be a list of digests")
    if "head" in about or "hash" in about:
        if type(about["head"]) is not int or not isinstance(about["hash"], str) or len(about["hash"]) != 64:
            raise NotJSON("'head' and 'hash' of the first line must be a number and 64 hexadecimal digits")
        bytes.fromhex(about["hash"])
    return about


def _parse_row(line: dict[str, Any], tokens: int) -> Row:
    kind, v = line["type"], line["v"]
    if kind not in VERSIONS:
        raise SchemaTooNew(f"event {line['seq']} has the unknown type {kind!r}: upgrade holdfast to read it")
    rest = [v, line["run"], line["branch"], line["author"], line["actor"]]
    header = None if rest == [1, None, None, None, None] else codec.encode(rest)
    body = tombstone = None
    if "data" in line:
        salt, payload = bytes.fromhex(line["salt"]), codec.encode(line["data"], room=codec.WRAPPING_DEPTH)
        if len(salt) != PAYLOAD_AT:
            raise NotJSON("a salt has 16 bytes, the last 4 of which are a checksum")
        body = salt + payload
        tokens += chain.estimate_tokens(len(payload)) if kind in MESSAGE_TYPES else 0
    else:
        tombstone = bytes.fromhex(line["commitment"])
        left = tombstone[COMMITMENT_SIZE:]
        tokens += codec.decode(left).get("tokens", 0) if left and kind in MESSAGE_TYPES else 0
    return Row(int(line["seq"]), int(line["at"]), kind, header, tokens, body, tombstone, bytes.fromhex(line["hash"]))


# -- Markdown, HTML ---------------------------------------------------------------------------------------------------


def _blocks(message: Message) -> list[tuple[str, str]]:
    """Return kind and text of each part of a message, as a person reads them."""
    found = []
    for part in message.parts:
        if isinstance(part, Text | Thinking):
            found.append((part.type, part.text))
        elif isinstance(part, ToolCall):
            arguments = part.arguments if isinstance(part.arguments, str) else codec.encode(part.arguments).decode()
            found.append(("call", f"{part.name}({arguments})"))
        elif isinstance(part, ToolResult):
            found.append(("error" if part.is_error else "result", part.content))
        else:
            where = part.url or f"{part.media_type}, {len(part.data or b'')} bytes"
            found.append((part.type, f"{part.name or part.type}: {where}"))
    return found


def _render_markdown(title: str, messages: list[Message]) -> str:
    """Return the messages as Markdown. Every text is in a code fence that is longer than any inside the text, so it
    can neither forge a heading nor bring HTML or links along."""
    lines = [f"# {_escape_markdown(title)}", ""]
    for message in messages:
        lines += [f"## {_escape_markdown(message.author)} ({message.role})", ""]
        for kind, text in _blocks(message):
            fence = "`" * (max(map(len, _BACKTICKS.findall(text)), default=2) + 1)
            lines += [*([] if kind == "text" else [f"*{kind}*", ""]), fence, text, fence, ""]
    return "\n".join(lines)


_BACKTICKS = re.compile("``+")
_MARKDOWN = re.compile(r"[\\`*_\[\]<>&~|!#]")


def _escape_markdown(text: str) -> str:
    """Return a name or a title on one line, without a meaning in Markdown or HTML."""
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "article{border-left:3px solid #bbb;padding:.2rem 1rem;margin:1rem 0}"
    "article.user{border-color:#36c}article.assistant{border-color:#393}article.tool{border-color:#c83}"
    "pre,p{white-space:pre-wrap;overflow-wrap:anywhere}h2{font-size:1rem}"
)


def _render_html(title: str, messages: list[Message]) -> str:
    escape = html.escape
    body = []
    for message in messages:
        parts = "".join(
            f"<p>{escape(text)}</p>" if kind == "text" else f"<p><em>{escape(kind)}</em></p><pre>{escape(text)}</pre>"
            for kind, text in _blocks(message)
        )
        body.append(f'<article class="{escape(message.role)}"><h2>{escape(message.author)}</h2>{parts}</article>')
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>{''.join(body)}</html>\n"
    )
