"""`holdfast keys`: API keys for a server, and the key pair that signs heads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli.output import CommandGroup, exit_on_error, json_option
from holdfast.cli.store import open_server_store, store_option


@click.group(cls=CommandGroup)
def keys() -> None:
    """Make, list and revoke the API keys of a server; make a signing key.

    The API keys are in the server's store, so a running server knows them within seconds. Exit code 0: done; 1: no such
    key; 2: the store or the input cannot be used.
    """


@keys.command()
@click.option(
    "--role",
    type=click.Choice(["read", "chat", "write", "admin"]),
    default="write",
    show_default=True,
    help="What the key may do.",
)
@click.option("--approve", "may_approve", is_flag=True, help="The key may decide about calls that wait for approval.")
@click.option("--user", help="The only user whose sessions the key opens; without it, those of every user.")
@click.option("--tenant", default="", help="The tenant; without it, the one that has no name.")
@click.option("--name", help="What the key is for, to tell it from others.")
@click.option("--expires-days", type=float, help="Days that the key lives; without it, until it is revoked.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=LIMIT",
    help="What its user may have or use, such as sessions=100; of its tenant, if it has no user. May be repeated.",
)
@store_option
@json_option
def create(
    role: Any,  # noqa: ANN401 - one of the four
    may_approve: bool,
    user: str | None,
    tenant: str,
    name: str | None,
    expires_days: float | None,
    quotas: tuple[str, ...],
    url: str | None,
    as_json: bool,
) -> None:
    """Make a key and show it, this once."""
    from holdfast.policy.quota import parse_quota
    from holdfast.server.api_keys import create_key

    with exit_on_error("keys", as_json=as_json), open_server_store(url, create=True) as store:
        key, info = create_key(
            store,
            role=role,
            tenant=tenant,
            user=user,
            name=name,
            may_approve=may_approve,
            expires_days=expires_days,
            quota=parse_quota(quotas),
        )
        if as_json:
            click.echo(json.dumps({"key": key} | info.to_public_dict(store.clock.now())))
            return
        click.echo(key)
        click.echo("Keep it: it is not shown again. To end it: holdfast keys revoke " + info.id, err=True)


@keys.command("list")
@store_option
@json_option
def list_(url: str | None, as_json: bool) -> None:
    """Show what is known of all keys, of every tenant; never the keys themselves."""
    from holdfast.server.api_keys import list_keys

    with exit_on_error("keys", as_json=as_json), open_server_store(url) as store:
        now = store.clock.now()
        found = [info.to_public_dict(now) for info in list_keys(store)]
    if as_json:
        click.echo(json.dumps({"keys": found}))
        return
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("ID", lambda key: key["id"]),
        ("STATUS", lambda key: key["status"]),
        ("ROLE", lambda key: key["role"] + ("+approve" if key["may_approve"] else "")),
        ("TENANT", lambda key: _printable_text(key["tenant"])),
        ("USER", lambda key: _printable_text(key["user"])),
        ("LAST USED", lambda key: _format_time(key["last_used"])),
        ("EXPIRES", lambda key: _format_time(key["expires_at"])),
        ("NAME", lambda key: _printable_text(key["name"])),
    ]
    rows = [[title for title, _ in columns], *([show(key) for _, show in columns] for key in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
@click.argument("key_id", metavar="ID")
@store_option
@json_option
def revoke(key_id: str, url: str | None, as_json: bool) -> None:
    """End the key with this ID (what is between the first two '_' of a key)."""
    from holdfast.server.api_keys import revoke_key

    with exit_on_error("keys", as_json=as_json), open_server_store(url) as store:
        is_done = revoke_key(store, key_id)
    if as_json:
        click.echo(json.dumps({"id": key_id, "revoked": is_done}))
    elif is_done:
        click.echo(f"{key_id} is revoked; servers know within a few seconds")
    else:
        click.echo(f"there is no key {key_id!r}: holdfast keys list", err=True)
    sys.exit(0 if is_done else 1)


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def signing(file: Path, as_json: bool) -> None:
    """Make a key that signs heads, in the new FILE, and its public key in FILE.pub.

    Give HOLDFAST_SIGNING_KEY=file:FILE to the servers, and the public key to those who verify. Keep FILE away from the
    database: who has both can rewrite history and sign it.
    """
    from holdfast.clock import SYSTEM_CLOCK
    from holdfast.stores.signing_keys import make_key_file

    with exit_on_error("keys", as_json=as_json):
        key = make_key_file(file, SYSTEM_CLOCK.random_bytes(32))
    if as_json:
        click.echo(json.dumps({"file": str(file), "public_key": key.public_key, "fingerprint": key.fingerprint}))
    else:
        click.echo(f"{key.fingerprint}: the signing key is in {file}, its public key in {file}.pub")


def _format_time(moment: str | None) -> str:
    return "-" if moment is None else moment[:16].replace("T", " ")


def _printable_text(text: str | None) -> str:
    """Return a text of an unknown author without characters that could control a terminal."""
    if not text:
        return "-"
    return "".join(letter if letter.isprintable() else "?" for letter in text)
