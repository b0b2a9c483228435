"""What a session object knows without asking the server, and how it names things to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.requests import url_path
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.client.transport import Transport


class Remote:
    """A session of a server: who it is. Whose it is and when it was made never change, so they are not asked again."""

    def __init__(self, wire: Transport, data: Mapping[str, Any], agent: str | None = None) -> None:
        self._transport = wire
        self.agent = agent  # who answers, by default: the id or the name of an agent of the server
        self._id: str = data["id"]
        self._user_id: str | None = data.get("user_id")
        self._app_name: str | None = data.get("app_name")
        self._created_at = datetime.fromisoformat(data["created_at"])
        self._temp: dict[str, Any] = {}  # of this object alone: tools run at the server, and do not see it

    @property
    def id(self) -> str:
        return self._id

    @property
    def session_id(self) -> str:
        return self._id

    @property
    def user_id(self) -> str | None:
        return self._user_id

    @property
    def app_name(self) -> str | None:
        return self._app_name

    @property
    def created_at(self) -> datetime:
        return self._created_at

    def __bool__(self) -> bool:
        return True  # an empty session is still a session

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, server={self._transport.base_url!r})"

    def _path(self, *steps: str) -> str:
        return url_path("sessions", self._id, *steps)

    def _other_session(self, data: Mapping[str, Any], agent: str | None = None) -> Self:
        """Another session of the same server."""
        return type(self)(self._transport, data, agent)

    def _agent_id(self, agent: str | Agent | None) -> str | None:
        """How the server knows an agent: by its id or its name."""
        if agent is None:
            return self.agent
        found = agent if isinstance(agent, str) else getattr(agent, "name", None)
        if not isinstance(found, str) or not found:
            raise InvalidArgument(
                "agent= is the id or the name of an agent that the server has; client.agents lists them"
            )
        return found

    def _body_with_agent(self, agent: str | Agent | None, **body: object) -> dict[str, Any]:
        """A body with what was given, and who is to answer."""
        return drop_none(agent_id=self._agent_id(agent), **body)


def drop_none(**fields: object) -> dict[str, Any]:
    """The fields that were given."""
    return {name: value for name, value in fields.items() if value is not None}
