"""users: the spec's people, same uid everywhere, home on the shared filesystem; those who left are locked out."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, remove, write
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

# In the comment field of passwd: tells our accounts from those the machine came with.
OURS = "muster"
SHELL = "/bin/bash"
NO_SHELL = "/usr/sbin/nologin"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    todo: list[Action] = []
    for name, user in desired.spec.users.items():
        todo += _account(facts, node, name, user.uid, desired.home(name))
        if node.role == "controller":
            todo += _home(facts, name, user.uid, desired.home(name))
    for name, found in facts.users.items():
        if found.comment == OURS and name not in desired.spec.users and found.shell != NO_SHELL:
            todo.append(
                Action(f"lock out {name}", f"usermod -L -e 1 -s {NO_SHELL} {name}\npkill -KILL -u {name} || true")
            )
    return todo + _sudoers(facts, desired)


def _account(facts: Facts, node: Node, name: str, uid: int, home: str) -> list[Action]:
    found = facts.users.get(name)
    holder = next((n for n, u in facts.users.items() if u.uid == uid and n != name), "")
    if holder or (found and found.uid != uid):
        seen = f"uid {uid} belongs to {holder}" if holder else f"{name} has uid {found.uid if found else ''}, not {uid}"
        raise BootstrapError(node.name, "users", seen, fix=f"give users.{name}.uid another value or replace the node")
    if found is None:
        # `*` is no password at all; useradd's own `!` would count as a locked account.
        script = f"useradd -M -U -u {uid} -d {shlex.quote(home)} -s {SHELL} -c {OURS} -p '*' {name}"
        return [Action(f"add user {name}", script)]
    if (found.home, found.shell, found.comment) != (home, SHELL, OURS):
        script = f"usermod -d {shlex.quote(home)} -s {SHELL} -c {OURS} -e '' -p '*' {name}"
        return [Action(f"correct user {name}", script)]
    return []


def _home(facts: Facts, name: str, uid: int, home: str) -> list[Action]:
    found = facts.homes.get(name)
    if found and found.uid == uid:
        return []
    path = shlex.quote(home)
    # Root makes the folder, links in it are not followed, and what goes into it comes from the user.
    script = (
        f"mkdir -p {path}\nchown -hR {uid}:{uid} {path}\n"
        # Last comes chmod: cp gives the folder the mode of /etc/skel.
        f"cd /\nrunuser -u {name} -- cp -an /etc/skel/. {path}/\nchmod 750 {path}"
    )
    return [Action(f"make the home of {name}", script)]


def _sudoers(facts: Facts, desired: Desired) -> list[Action]:
    admins = [name for name, user in desired.spec.users.items() if user.admin]
    if not admins:
        return remove(facts, "/etc/sudoers.d/muster")
    return write(facts, "/etc/sudoers.d/muster", "".join(f"{a} ALL=(ALL) NOPASSWD: ALL\n" for a in admins), 0o440)


STEP = Step("users", "accounts, homes, sudo", actions)
