"""Detectors of bugs in roles, approvals and work directories. They return what they found: nothing if all is well."""

from __future__ import annotations

from collections.abc import Callable

from tests.proofs.crashes import make_scratch_directory
from tests.proofs.secured_server import Caller, SecuredServer
from tests.proofs.work_dirs import check_later_work_dirs, check_work_dirs, make_folders


def _use_foreign_work_dirs(seed: int) -> list[str]:
    """Sessions of every owner, in the folders of all others."""
    with make_scratch_directory(memory=True) as directory:
        root = directory / "work"
        make_folders(root)
        with SecuredServer(directory, sessions=1, work_roots=(str(root),)) as server, Caller(server.port) as caller:
            return [*check_work_dirs(caller, server, root), *check_later_work_dirs(caller, server, root)]


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "work directories of others": _use_foreign_work_dirs,
}
