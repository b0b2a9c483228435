"""The fields of a session: title, system prompt, metadata, work_dir, and the agent that has the conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import property_twin, twin
from holdfast.errors import Conflict, InvalidArgument, LimitExceeded
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name
from holdfast.turn.live_mapping import LiveMapping

if TYPE_CHECKING:
    from holdfast.log.view import View
    from holdfast.policy.budget import Budget
    from holdfast.policy.retention import Retention
    from holdfast.stores.base import Log, Store

UNCHANGED: Any = object()  # stands for a field that is not given
CHANGEABLE = ("title", "system", "metadata", "work_dir", "active_agent", "budget", "retention")


class FieldMethods:
    """The methods of `Session` for its fields: `title`, `system`, `metadata`, `work_dir`, `active_agent`."""

    store: Store
    log: Log
    if TYPE_CHECKING:

        def _view(self) -> View: ...

    @property
    def system(self) -> str | None:
        """The system prompt of the session. Set it for the turns that follow; None removes it."""
        found: str | None = self.store.value(self.log, "system")
        return found

    @system.setter
    def system(self, value: str | None) -> None:
        self._change_fields({"system": None} if value is None else self._build_fields(system=value))

    @property
    def title(self) -> str | None:
        return self.store.info(self.log).title

    @title.setter
    def title(self, value: str | None) -> None:
        self._change_fields({"title": None} if value is None else self._build_fields(title=value))

    @property
    def metadata(self) -> MutableMapping[str, Any]:
        """The metadata, as a live mapping: every write is durable. Assign a dict to replace all of it."""
        return LiveMapping(
            self._read_metadata,
            lambda name, default: self._read_metadata().get(name, default),
            lambda name, value: self._change_metadata(lambda found: found.update({name: value})),
            lambda name: self._change_metadata(lambda found: found.pop(name, self)) is not self,
        )

    @metadata.setter
    def metadata(self, value: Mapping[str, Any] | None) -> None:
        self._change_fields(self._build_fields(metadata={} if value is None else value))

    def _read_metadata(self) -> dict[str, Any]:
        return self.store.info(self.log).metadata

    def _change_metadata(self, change: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - of the change
        """Change the metadata, atomically across threads and processes. Returns what `change` returns."""
        while True:
            head, found = self.store.head(self.log).head, dict(self._read_metadata())
            before = dict(found)
            result = change(found)
            if found == before:
                return result
            fields = self._build_fields(metadata=found)
            try:
                self.store.append(self.log, [Draft(type="session.changed", data=fields)], expected=head)
                return result
            except Conflict:  # another writer appended first: read the metadata again
                continue

    @property
    def work_dir(self) -> Path | None:
        """The folder of the file tools. Set it for the turns that follow; None removes it."""
        found = self.store.info(self.log).work_dir
        return None if found is None else Path(found)

    @work_dir.setter
    def work_dir(self, value: str | Path | None) -> None:
        self._change_fields({"work_dir": None} if value is None else self._build_fields(work_dir=value))

    def change(
        self,
        *,
        title: str | None = UNCHANGED,
        metadata: Mapping[str, Any] | None = UNCHANGED,
        work_dir: str | Path | None = UNCHANGED,
        system: str | None = UNCHANGED,
        budget: Budget | Mapping[str, Any] | None = UNCHANGED,
        retention: Retention | Mapping[str, Any] = UNCHANGED,
        active_agent: str | None = UNCHANGED,
    ) -> None:
        """Set the given fields, one after the other, and keep the rest. None takes a field away."""
        given = {
            "title": title,
            "metadata": metadata,
            "work_dir": work_dir,
            "system": system,
            "budget": budget,
            "retention": retention,
            "active_agent": active_agent,
        }
        for name, value in given.items():
            if value is not UNCHANGED:
                setattr(self, name, value)

    def _change_fields(self, fields: dict[str, Any]) -> None:
        self.store.append(self.log, [Draft(type="session.changed", data=fields)])

    @property
    def active_agent(self) -> str | None:
        """The name of the agent that has the conversation: by a handoff, or because a router stays with it.

        Set it to give the conversation to another agent; with None, the next turn begins with `agent=` again.
        """
        return self._view().active

    @active_agent.setter
    def active_agent(self, name: str | None) -> None:
        agent = None if name is None else check_name(name, "the name of an agent")
        self.store.append(self.log, [Draft(type="agent.assigned", data={"agent": agent})])

    def _build_fields(
        self,
        *,
        system: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
        work_dir: str | Path | None = None,
    ) -> dict[str, Any]:
        """Check the given fields and return them as the data of an event. Raises LimitExceeded if one is too large."""
        limits = self.store.limits
        fields: dict[str, Any] = {}
        if system is not None:
            codec.text_bytes(system, "system", limits.text)
            fields["system"] = system
        if title is not None:
            codec.text_bytes(title, "title", limits.text)
            fields["title"] = title
        if work_dir is not None:
            fields["work_dir"] = str(work_dir)
        if metadata is not None:
            if not isinstance(metadata, Mapping):
                raise InvalidArgument(f"metadata is a dict, not {type(metadata).__name__}")
            fields["metadata"] = dict(metadata)
            size = len(codec.encode(fields["metadata"]))
            if size > limits.metadata:
                raise LimitExceeded("metadata", size=size, limit=limits.metadata, hint="keep large things in state")
        return fields

    def _fields_at(self, at: int, is_now: bool) -> dict[str, Any]:
        """Return title, metadata and work_dir as they were after event `at`; the session list has the current ones."""
        if is_now:
            info = self.store.info(self.log)
            return {"title": info.title, "metadata": info.metadata, "work_dir": info.work_dir}
        return {name: self.store.value(self.log, name, at=at) for name in ("title", "metadata", "work_dir")}

    change_async = twin(change)
    active_agent_async = property_twin("active_agent")
    metadata_async = twin(_read_metadata)
    system_async = property_twin("system")
    title_async = property_twin("title")
    work_dir_async = property_twin("work_dir")
