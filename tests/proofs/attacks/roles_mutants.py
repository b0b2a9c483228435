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
    mutant(
        "every key that writes approves",
        "callers",
        ("server.auth", "return self.is_approver or self.role", 'return self.has_role("write") or self.role'),
    ),
    mutant(
        "a device sends every field",
        "callers",
        ("server.field_rights", 'if refused and not caller.has_role("write"):', "if False:"),
    ),
    mutant(
        "a key of a user sets the limits of the user",
        "callers",
        ("server.field_rights", "if refused and not caller.is_application:", "if False:"),
    ),
    mutant(
        "an import lifts the limits of a user",
        "callers",
        ("server.field_rights", 'if row.type in ("session.created", "session.changed"):', "if False:"),
    ),
    mutant(
        "a key that writes holds a session",
        "callers",
        ("server.routes.compliance", "def hold_session(caller: Admin", "def hold_session(caller: Writer"),
    ),
    mutant(
        "a device writes state",
        "callers",
        ("server.auth", 'Writer = Annotated[Caller, Depends(require("write"))]', "Writer = Chatter"),
    ),
    mutant(
        "who asked approves as the second person",
        "second persons",
        ("policy.approvers", "actor in asked_by or ", ""),
    ),
    mutant(
        "an unnamed person is a second person",
        "second persons",
        ("policy.approvers", "actor is None or actor in asked_by", "actor in asked_by"),
    ),
    mutant(
        "names of those who may decide are not looked at",
        "second persons",
        ("policy.approvers", "(isinstance(rule, list) and actor not in rule)", "False"),
    ),
    mutant(
        "the rule of a request is not stored",
        "second persons",
        ("turn.agent_loop", "    if rule == ALWAYS:\n", "    if rule:\n"),
    ),
    mutant(
        "the user of a session did not ask",
        "second persons",
        ("turn.askers", "found |= {each.user_id, *_ask", "found |= {*_ask"),
    ),
    mutant(
        "who asked the caller of an agent did not ask",
        "second persons",
        ("turn.askers", "waiting.append(caller)", "pass"),
    ),
    mutant(
        "the budget of a session replaces that of its agent",
        "second persons",
        ("turn.runtime", "for each in found if each is not None]", "for each in found if each is not None][:1]"),
    ),
    mutant(
        "a device opens what was closed",
        "devices",
        ("server.run_requests", 'if not caller.has_role("write"):', "if False:"),
    ),
    mutant(
        "a password may be on the command line",
        "devices",
        ("server.config", 'if has_password(str(flags.get("store") or "")):', "if False:"),
    ),
)
