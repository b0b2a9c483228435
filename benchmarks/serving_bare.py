"""Bare FastAPI with the same server as holdfast: the cost of an empty request without authentication."""

from __future__ import annotations

from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from holdfast.server.config import Config
from holdfast.server.process import bind_sockets, uvicorn_config

app = FastAPI()


@app.get("/tools")
async def tools() -> dict[str, list[str]]:
    return {"tools": []}


def main() -> None:
    config = Config(port=0)
    sockets = bind_sockets(config)
    config = replace(config, port=sockets[0].getsockname()[1])
    print(config.url, flush=True)
    uvicorn.Server(uvicorn_config(app, config)).run(sockets)


if __name__ == "__main__":
    main()
