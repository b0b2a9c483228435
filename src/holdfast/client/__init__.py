"""The client of a server, for programs that keep their sessions there.

`client.session(id)` has the methods, properties, types and errors of the library's own Session. Everything is written
once, as flows of calls, and has two drivers; nothing here reads a store.
"""

from holdfast.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
