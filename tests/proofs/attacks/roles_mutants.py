"""Bugs in roles, approvals and work directories."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "tenants and users share a work root",
        "work directories of others",
        (
            "server.work_dirs",
            "    if user is None:\n        return _encode_name(tenant)\n    return",
            "    return '' and",
        ),
    ),
    mutant(
        "a work_dir is checked only when it is set",
        "work directories of others",
        ("server.work_dirs", "if found is None:  # the text", "if found is None and not (found := path):  # the text"),
    ),
    mutant(
        "the folder of an owner may be a link",
        "work directories of others",
        ("server.work_dirs", "Path(os.path.realpath(root), folder)", "os.path.realpath(Path(root, folder))"),
    ),
    mutant(
        "an import keeps any work_dir beneath the roots",
        "work directories of others",
        ("server.routes.imports", "tenant=tenant, user=user_id)", 'tenant="", user=None)'),
    ),
    mutant(
        "a session that exists takes the work_dir of another owner",
        "work directories of others",
        ("server.routes.sessions", 'options["user_id"] if known is None else known.user_id', 'options["user_id"]'),
    ),
)
