"""Who may decide about a call that waits for a person. The rule is stored with the request, so every process has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.errors import WrongApprover

ALWAYS, SECOND_PERSON = "always", "second_person"
Rule = str | list[str]


def approval_rule(value: object) -> Rule | None:
    """Return the rule of a tool's `approval`, or of what its function returned; None if no person is asked.

    "always" takes the decision of every actor, "second_person" that of an actor who did not ask, and a list that of the
    actors in it, except those who asked.
    """
    if isinstance(value, list | tuple | set | frozenset) and value and all(isinstance(name, str) for name in value):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    if value == SECOND_PERSON:
        return SECOND_PERSON
    return ALWAYS if value else None


def is_approval(value: object) -> bool:
    """Whether a value can be the `approval` of a tool that is no function."""
    return value in (None, ALWAYS, SECOND_PERSON) or (
        isinstance(value, list | tuple | set | frozenset) and isinstance(approval_rule(value), list)
    )


def check_decider(call_id: str, request: Mapping[str, Any], actor: str | None) -> Rule | None:
    """Return the rule of a request, if it has one; raise WrongApprover if this actor may not decide about it."""
    rule: Rule | None = request.get("approvers")
    if rule is None:
        return None
    asked_by: Collection[str] = request.get("asked_by", ())
    if actor is None or actor in asked_by or (isinstance(rule, list) and actor not in rule):
        raise WrongApprover(call_id, actor, rule if isinstance(rule, list) else ())
    return rule
