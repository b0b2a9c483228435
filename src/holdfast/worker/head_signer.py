"""Signing of heads: every log that moved since its last signature gets a new one, outside of any append.

The signer signs no head that contradicts the signature before it: a log that lost events, or whose signed event has
another hash, is reported and keeps its old signature, which then convicts it. Any number of signers may run.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast import diagnostics
from holdfast.errors import InvalidArgument, SessionNotFound
from holdfast.log import codec
from holdfast.stores.base import Store
from holdfast.stores.signatures import HeadToSign
from holdfast.stores.signing_keys import SignedHead, SigningKey

PAGE = 500
ANCHOR_SECONDS = 60.0  # for a command to take the lines of a page


class Anchor:
    """An append-only place of the user's for signed heads: `file:/path`, or `command:…`, which reads lines on stdin."""

    def __init__(self, target: str) -> None:
        kind, _, rest = target.partition(":")
        if kind not in ("file", "command") or not rest.strip():
            raise InvalidArgument(f"the anchor {kind!r} is not understood: use file:/path, or command: and a command")
        self._kind, self._rest = kind, rest

    def add(self, heads: Sequence[SignedHead]) -> None:
        """Add a line of JSON for each head, durably. Raises OSError or SubprocessError if that fails."""
        lines = b"".join(codec.encode(head.to_dict()) + b"\n" for head in heads)
        if self._kind == "command":
            subprocess.run(
                shlex.split(self._rest), input=lines, check=True, timeout=ANCHOR_SECONDS, stdout=subprocess.DEVNULL
            )
            return
        descriptor = os.open(self._rest, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class SigningReport:
    """What one round of signing did."""

    signed: int = 0
    altered: list[str] = field(default_factory=list)  # logs that contradict their last signature
    is_anchored: bool = True  # whether the anchor took everything; what it did not take is offered again


def sign_heads(store: Store, key: SigningKey, anchor: Anchor | None = None) -> SigningReport:
    """Sign the head of every log that has none or has moved since; of every tenant, if the store is bound to none."""
    report, after = SigningReport(), 0
    while page := store.heads_to_sign(after=after, limit=PAGE):
        after = page[-1].log.number
        signed = []
        for each in page:
            if _contradicts(store.for_tenant(each.tenant), each):
                report.altered.append(each.log.id)
                _report_altered(each)
                continue
            at = store.clock.now()
            signed.append((each.log.number, key.sign_head(each.tenant, each.log, seq=each.head, hash=each.hash, at=at)))
        is_anchored = anchor is None or _add_to_anchor(anchor, [head for _, head in signed])
        report.is_anchored &= is_anchored
        store.put_signatures(signed, anchored=is_anchored)
        report.signed += len(signed)
    return report


def _contradicts(store: Store, each: HeadToSign) -> bool:
    """Whether a log no longer has the event that was signed last."""
    if each.signed is None:
        return False
    if each.head < each.signed.seq:
        return True
    try:
        rows = store.read(each.log, each.signed.seq, each.signed.seq)
    except SessionNotFound:
        return False
    return not rows or rows[0].hash.hex() != each.signed.hash


def _add_to_anchor(anchor: Anchor, heads: list[SignedHead]) -> bool:
    try:
        if heads:
            anchor.add(heads)
    except (OSError, subprocess.SubprocessError) as error:
        # By its class: the text repeats the command, and with it perhaps a secret.
        diagnostics.report(
            logging.ERROR,
            "the anchor did not take the signed heads (%(error)s): they are offered again",
            {"error": type(error).__name__},
        )
        return False
    return True


def _report_altered(each: HeadToSign) -> None:
    diagnostics.report(
        logging.ERROR,
        "a log contradicts its last signature and was not signed again: verify it",
        {"session_id": each.log.id} if each.log.kind == "session" else {"kind": each.log.kind, "key": each.log.id},
    )
