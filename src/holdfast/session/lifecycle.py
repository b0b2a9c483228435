"""The lifecycle of a session: pause, close, archive and reopen it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.concurrency import property_twin, twin
from holdfast.errors import LifecycleError
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name

if TYPE_CHECKING:
    from holdfast.log.view import View
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.base import Log, Store


class LifecycleMethods:
    """The methods of `Session` for its lifecycle: `status`, `pause`, `close`, `archive`, `reopen`."""

    store: Store
    log: Log
    cache: SessionCache
    if TYPE_CHECKING:

        def _view(self) -> View: ...

    @property
    def status(self) -> str:
        """open, active, waiting, paused, closed or archived."""
        return self._view().status

    def pause(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Pause the session until `resume`."""
        self._change_status("session.paused", reason, actor)

    def close(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Close the session and drop temp state. The session stays readable, and `reopen` opens it again.

        Closing a closed session changes nothing.
        """
        try:
            self._change_status("session.closed", reason, actor)
        except LifecycleError as error:
            if error.session_status != "closed":
                raise
        self.cache.temp.clear()

    def archive(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Archive the session. It stays readable, and `reopen` opens it again."""
        self._change_status("session.archived", reason, actor)

    def reopen(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Open a closed or archived session again."""
        self._change_status("session.reopened", reason, actor)

    def _change_status(self, type: str, reason: str | None, actor: str | None) -> None:
        # The fold inside the append decides whether the change is legal, so no process can change the status first.
        data = {} if reason is None else {"reason": check_name(reason, "a reason", self.store.limits.metadata)}
        self.store.append(self.log, [Draft(type=type, data=data, actor=actor)])

    status_async = property_twin("status")
    archive_async = twin(archive)
    close_async = twin(close)
    pause_async = twin(pause)
    reopen_async = twin(reopen)
