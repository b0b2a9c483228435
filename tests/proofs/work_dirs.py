"""Work directories of several owners beneath one root: each owner's sessions use that owner's folder, and no other.

`FOLDERS` is the table of what is expected: the folder of each owner, and the folders that sessions of that owner may
use. Every file holds the canary of its folder, so that a foreign one is recognized wherever it is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Session
from tests.proofs.secured_server import Caller, Owner, SecuredServer, make_canary

FILE = "plan.txt"
# By owner: the folder beneath the root, and all the folders that are in it.
FOLDERS: dict[Owner, tuple[str, set[str]]] = {
    ("", None): ("", {"", "@/alice", "acme", "acme/alice", "acme/bob", "evil", "evil/alice"}),
    ("", "alice"): ("@/alice", {"@/alice"}),
    ("acme", None): ("acme", {"acme", "acme/alice", "acme/bob"}),
    ("acme", "alice"): ("acme/alice", {"acme/alice"}),
    ("acme", "bob"): ("acme/bob", {"acme/bob"}),
    ("evil", None): ("evil", {"evil", "evil/alice"}),
    ("evil", "alice"): ("evil/alice", {"evil/alice"}),
}
# A caller for each owner. The key without a user makes sessions for a user as well.
KEYS: tuple[tuple[str, Owner], ...] = (
    ("server", ("", None)),
    ("server", ("", "alice")),
    ("default alice admin", ("", "alice")),
    ("acme service write", ("acme", None)),
    ("acme service write", ("acme", "alice")),
    ("acme service write", ("acme", "bob")),
    ("acme alice write", ("acme", "alice")),
    ("acme bob write", ("acme", "bob")),
    ("evil service admin", ("evil", None)),
    ("evil service admin", ("evil", "alice")),
    ("evil alice write", ("evil", "alice")),
)


def make_folders(root: Path) -> Path:
    """The folders of all owners, each with a file that names it."""
    for owner, (folder, _) in FOLDERS.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / FILE).write_text(f"plan of {make_canary(*owner)}")
    return root


def check_work_dirs(caller: Caller, server: SecuredServer, root: Path) -> Iterator[str]:
    """Every key names every folder, for a new session and for one that exists; then its agent reads the file."""
    for number, (name, owner) in enumerate(KEYS):
        headers = server.contents.principals[name].headers
        made = caller.ask("POST", "/sessions", headers, {"id": f"works-{number}", "user_id": owner[1]})
        allowed = FOLDERS[owner][1]
        for other, (folder, _) in FOLDERS.items():
            body = {"work_dir": str(root / folder)}
            what = f"{name} for {owner}: work_dir {folder or 'root'!r}"
            answers = [
                caller.ask("POST", "/sessions", headers, body | {"user_id": owner[1]}),
                caller.ask("PUT", f"/sessions/{made.json['id']}", headers, body),
            ]
            if [answer.status < 300 for answer in answers] != [folder in allowed] * 2:
                yield f"{what} -> {[(answer.status, answer.body[:300]) for answer in answers]}"
            elif folder not in allowed and str(root / FOLDERS[owner][0]) not in answers[0].json["error"]:
                yield f"{what}: the error does not say which directory is allowed: {answers[0].json['error']}"
            elif folder in allowed and make_canary(*other) not in (found := read_plan(caller, headers, answers[1])):
                yield f"{what}: the agent read {found[:300]!r}"


def read_plan(caller: Caller, headers: dict[str, str], session: Any) -> str:
    """What the agent of a session reads in the file of its work_dir."""
    path = f"/sessions/{session.json['id']}/message"
    answer = caller.ask("POST", path, headers, {"agent_id": "helper", "message": f"read {FILE}"})
    return answer.body.decode()


def check_later_work_dirs(caller: Caller, server: SecuredServer, root: Path) -> Iterator[str]:
    """A work_dir that was allowed, or never asked about, and leads to another owner when the turn runs."""
    headers, bob = server.contents.principals["acme alice write"].headers, make_canary("acme", "bob")
    store = server.store.for_tenant("acme")
    folder = root / "acme/alice/later"
    folder.mkdir()
    swapped = caller.ask("POST", "/sessions", headers, {"work_dir": str(folder)})
    os.rename(folder, root / "acme/alice/earlier")
    folder.symlink_to("../bob")
    if swapped.status != 201 or bob in (found := read_plan(caller, headers, swapped)):
        yield f"a directory that became a link: {swapped.status} {found[:300]!r}"
    elif "work_dir" not in found:
        yield f"a directory that became a link: the result does not say why: {found[:300]!r}"
    # The floor of an owner is no link either: a tenant could lead it to another tenant.
    (root / "acme/carol").symlink_to("../evil/alice")
    service = server.contents.principals["acme service write"].headers
    answer = caller.ask("POST", "/sessions", service, {"user_id": "carol", "work_dir": str(root / "acme/carol")})
    if answer.status != 400:
        yield f"a folder of an owner that is a link to another tenant -> {answer.status} {answer.body[:300]!r}"
    for owner in ("alice", "bob"):
        heads = root / "acme" / owner / ".git/refs/heads"
        heads.mkdir(parents=True)
        (heads / f"branch-of-{owner}").write_text("1" * 40 + "\n")
        (heads.parent.parent / "HEAD").write_text(f"ref: refs/heads/branch-of-{owner}\n")
    Session("at-home", store=store, user_id="alice", work_dir=root / "acme/alice")
    answer = caller.ask("GET", "/sessions/at-home/brief", headers)
    if "branch-of-alice" not in answer.body.decode():
        yield f"the brief of a session in its own folder names no branch: {answer.body.decode()[:300]!r}"
    for id, work_dir in (("by-library", root / "acme/bob"), ("by-link", root / "acme/alice/later")):
        Session(id, store=store, user_id="alice", work_dir=work_dir)
        for method, path in (("GET", "brief"), ("POST", "successor")):
            answer = caller.ask(method, f"/sessions/{id}/{path}", headers)
            told = (
                answer.body.decode()
                if method == "GET"
                else caller.ask("GET", f"/sessions/{answer.json['id']}/history", headers).body.decode()
            )
            if "branch-of-bob" in told:
                yield f"{path} of {id} tells the branch of another user: {told[:300]!r}"
        found = read_plan(caller, headers, caller.ask("GET", f"/sessions/{id}", headers))
        if bob in found:
            yield f"a work_dir that the library set ({id}): the agent read {found[:300]!r}"
    body = {"id": "by-library", "exist_ok": True, "work_dir": str(root / "acme/bob")}
    if (answer := caller.ask("POST", "/sessions", service, body)).status != 400:
        yield f"a key without a user, for a session that exists -> {answer.status} {answer.body[:300]!r}"
    exported = Session("by-backend", store=store, user_id="bob", work_dir=root / "acme/bob").export()
    answer = caller.ask("POST", "/sessions/import", headers, {"data": exported, "id": "imported"})
    if answer.status != 400:
        yield f"an import with the work_dir of another user -> {answer.status} {answer.body[:300]!r}"
