"""`holdfast serve`: sessions over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from holdfast.cli.options import FREE_PORT, server_options
from holdfast.cli.output import exit_on_error
from holdfast.errors import InvalidArgument, MissingExtra


@click.command()
@click.argument("app", required=False)
@server_options
def serve(app: str | None, **flags: object) -> None:
    """Serve sessions over HTTP.

    APP is a Python file or module (`app.py`, `package.module:app`) that defines agents and tools; without one, agents
    are made over HTTP. Exit code 0: stopped; 2: the settings or APP cannot be used.
    """
    try:
        with exit_on_error("serve"):
            _serve(app, flags)
    except KeyboardInterrupt:
        sys.exit(0)  # before it served


def _serve(app: str | None, flags: dict[str, object]) -> None:
    from holdfast.server.config import Config

    try:
        from holdfast.server import logging as server_logging
        from holdfast.server.app import Server
        from holdfast.server.app_loader import App, load_app
        from holdfast.server.auth import server_token
        from holdfast.server.process import bind_sockets, run_server
    except ModuleNotFoundError as error:
        raise MissingExtra("the server", "server") from error
    config = Config.from_env(os.environ, **flags)
    config.check()
    found = App({}, {}, None) if app is None else load_app(app)
    store = config.open_store()
    token = None if config.open else server_token(config)
    server_logging.configure_logging(config.log_level, secrets=[] if token is None else [token.value])
    try:
        sockets = bind_sockets(config)
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on {config.host}:{config.port} ({error.strerror}): {FREE_PORT}"
        ) from error
    config = replace(config, port=sockets[0].getsockname()[1])
    server = Server(store, config, token=None if token is None else token.value, **found._asdict())
    click.echo(f"holdfast serves {config.url} from {store!r}", err=True)
    if config.open:
        click.echo("OPEN: everybody on this machine may do everything; no token is asked for.", err=True)
    elif token is not None and token.path is not None:
        click.echo(f"the token is in {token.path}; send it as 'Authorization: Bearer …'", err=True)
    try:
        run_server(server, sockets=sockets)
    finally:
        store.close()
