"""`holdfast sign`: signs the heads that moved since their last signature, once."""

from __future__ import annotations

import json
import os
import sys

import click

from holdfast.cli.output import count_of, exit_on_error, json_option
from holdfast.cli.store import open_server_store, store_option
from holdfast.errors import InvalidArgument


@click.command()
@store_option
@click.option("--anchor", help="Where the signed heads go: file:/path, or command:…  [HOLDFAST_ANCHOR]")
@json_option
def sign(url: str | None, anchor: str | None, as_json: bool) -> None:
    """Sign the head of every log that moved since its last signature.

    The key is that of HOLDFAST_SIGNING_KEY (holdfast keys signing makes one). A server with this variable does the same
    by itself. Exit code 0: done; 1: a log contradicts its last signature, or the anchor took nothing; 2: the store or
    the key cannot be used.
    """
    from holdfast.stores.signing_keys import SIGNING_KEY, SigningKey
    from holdfast.worker.head_signer import Anchor, sign_heads

    with exit_on_error("sign", as_json=as_json):
        key = SigningKey.from_environment()
        if key is None:
            raise InvalidArgument(f"{SIGNING_KEY} is not set: holdfast keys signing FILE makes a key")
        target = anchor or os.environ.get("HOLDFAST_ANCHOR")
        with open_server_store(url) as store:
            report = sign_heads(store, key, Anchor(target) if target else None)
    if as_json:
        found = {"key": key.fingerprint, "signed": report.signed, "altered": report.altered}
        click.echo(json.dumps(found | {"anchored": report.is_anchored}))
    else:
        for id in report.altered:
            click.echo(f"{id}: contradicts its last signature, and was not signed again: holdfast verify --store")
        left = "" if report.is_anchored else "; the anchor did not take them, and they are offered again"
        click.echo(f"{count_of(report.signed, 'head')} signed with {key.fingerprint}{left}")
    sys.exit(0 if not report.altered and report.is_anchored else 1)
