"""`holdfast verify --store`: checks every log of a store against its chain, its signatures and an anchor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import count_of
from holdfast.cli.progress import show_progress
from holdfast.cli.store import open_server_store
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log import chain, codec
from holdfast.stores.signing_keys import PublicKeys, SignedHead
from holdfast.stores.verification import check_signed_head

if TYPE_CHECKING:
    from holdfast.stores.base import Store, TenantLog

PAGE = 500


def verify_store(url: str, keys: PublicKeys, anchor: str | None, *, as_json: bool) -> int:
    """Print what is wrong, and the numbers; return the exit code."""
    if anchor is not None and not keys:
        raise InvalidArgument("an anchor is checked with --public-key: give the key that signed its lines")
    heads = {} if anchor is None else read_anchor(Path(anchor), keys)
    seen: set[tuple[str, str]] = set()
    checked = unsigned = bad = 0
    with open_server_store(url) as store, show_progress("verifying the store") as progress:
        for each in list_logs(store):
            found = _check_log(store.for_tenant(each.tenant), each, keys, heads)
            seen.add((each.tenant, each.log.uid))
            checked, progress.done = checked + 1, progress.done + 1
            unsigned += found.signed is None
            bad += not found
            if as_json:
                place = {"tenant": each.tenant, "kind": each.log.kind, "id": each.log.id}
                click.echo(json.dumps(place | asdict(found)))
            elif not found:
                click.echo(f"{each.log.kind} {each.log.id}: {found.reason}")
    gone = [signed[-1] for place, signed in heads.items() if place not in seen]
    if not as_json:
        for head in gone:
            click.echo(f"{head.kind} {head.id}: deleted or purged since it was signed on {head.time}")
        signed = f", {unsigned} without a checked signature" if keys else ""
        click.echo(f"{count_of(checked, 'log')} checked, {bad} altered{signed}")
    return 1 if bad else 0


def list_logs(store: Store) -> Iterator[TenantLog]:
    """Every log of every tenant that has a name."""
    after = 0
    while page := store.logs_after(after, limit=PAGE):
        yield from page
        after = page[-1].log.number


def read_anchor(path: Path, keys: PublicKeys) -> dict[tuple[str, str], list[SignedHead]]:
    """The signed heads of each log, by tenant and uid: all, because a later one may have been signed for a forged log
    after its signature was removed from the database.

    Raises InvalidArgument for a line whose signature does not count.
    """
    found: dict[tuple[str, str], list[SignedHead]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                head = SignedHead.from_dict(codec.parse(line))
            except AgentError as error:
                raise InvalidArgument(f"line {number} of the anchor is no signed head: {error}") from error
            flaw = keys.find_flaw(head)
            if flaw is not None:
                raise InvalidArgument(f"line {number} of the anchor does not count: {flaw}")
            found.setdefault((head.tenant, head.uid), []).append(head)
    return found


def _check_log(
    store: Store, each: TenantLog, keys: PublicKeys, heads: dict[tuple[str, str], list[SignedHead]]
) -> chain.Verification:
    try:
        found = store.verify(each.log, keys)
        for head in heads.get((each.tenant, each.log.uid), ()):
            found = check_signed_head(store, each.log, found, head, keys) if found else found
        return found
    except AgentError as error:
        return chain.Verification(ok=False, checked=0, reason=str(error))
