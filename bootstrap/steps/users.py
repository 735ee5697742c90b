"""Users: the accounts in the spec, with the same uid on every node and a home on the shared filesystem."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, remove_file, write_file
from bootstrap.changes import UNRECORDED, Changes
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

# Comment field in passwd, which distinguishes our accounts from those of the image.
OUR_COMMENT = "muster"
SHELL = "/bin/bash"
NO_SHELL = "/usr/sbin/nologin"


def plan_users(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Add and correct the spec's users, lock out users who are no longer in it, and give admins sudo."""
    todo: list[Action] = []
    for name, user in desired.spec.users.items():
        todo += _plan_account(facts, node, name, user.uid, desired.home(name))
        if node.role == "controller":
            todo += _plan_home(facts, node, name, user.uid, desired.home(name))
    for name, account in facts.users.items():
        if account.comment == OUR_COMMENT and name not in desired.spec.users and account.shell != NO_SHELL:
            script = f"usermod -L -e 1 -s {NO_SHELL} {name}\npkill -KILL -u {name} || true"
            todo.append(Action(f"lock out {name}", script, changes=Changes(account_files=True)))
    return todo + _plan_sudoers(facts, desired)


def _plan_account(facts: Facts, node: Node, name: str, uid: int, home: str) -> list[Action]:
    account = facts.users.get(name)
    holder = next((other for other, user in facts.users.items() if user.uid == uid and other != name), "")
    if holder or (account and account.uid != uid):
        line = f"uid {uid} belongs to {holder}" if holder else f"{name} has uid {account and account.uid}, not {uid}"
        raise BootstrapError(node.name, "users", line, fix=f"give users.{name}.uid another value or replace the node")
    if node.adopted and account and account.comment != OUR_COMMENT:
        line = f"the account {name} exists already and is not muster's"
        raise BootstrapError(node.name, "users", line, fix=f"give users.{name} another name, or remove the account")
    if account is None:
        # `*` means no password at all; useradd's default `!` would count as a locked account.
        script = f"useradd -M -U -u {uid} -d {shlex.quote(home)} -s {SHELL} -c {OUR_COMMENT} -p '*' {name}"
        return [Action(f"add user {name}", script, changes=Changes(accounts=(name,)))]
    if (account.home, account.shell, account.comment) != (home, SHELL, OUR_COMMENT):
        script = f"usermod -d {shlex.quote(home)} -s {SHELL} -c {OUR_COMMENT} -e '' -p '*' {name}"
        return [Action(f"correct user {name}", script, changes=Changes(account_files=True))]
    return []


def _plan_home(facts: Facts, node: Node, name: str, uid: int, path: str) -> list[Action]:
    home = facts.homes.get(name)
    if home and home.uid == uid:
        return []
    if home and node.adopted:
        # The shared filesystem is the owner's, and somebody's files are in there.
        line = f"{path} exists already and belongs to uid {home.uid}, not {uid}"
        fix = f"write `users: {{{name}: {{uid: {home.uid}}}}}`, choose another name, or move that folder away"
        raise BootstrapError(node.name, "users", line, fix=fix)
    quoted = shlex.quote(path)
    # Root creates the folder without following links in it; everything inside is written by the user.
    script = (
        f"mkdir -p {quoted}\nchown -hR {uid}:{uid} {quoted}\n"
        # chmod comes last: cp gives the folder the mode of /etc/skel.
        f"cd /\nrunuser -u {name} -- cp -an /etc/skel/. {quoted}/\nchmod 750 {quoted}"
    )
    return [Action(f"create the home of {name}", script, changes=UNRECORDED)]


def _plan_sudoers(facts: Facts, desired: Desired) -> list[Action]:
    admins = [name for name, user in desired.spec.users.items() if user.admin]
    if not admins:
        return remove_file(facts, "/etc/sudoers.d/muster")
    lines = "".join(f"{admin} ALL=(ALL) NOPASSWD: ALL\n" for admin in admins)
    return write_file(facts, "/etc/sudoers.d/muster", lines, 0o440)


STEP = Step("users", "accounts, homes, sudo", plan_users)
