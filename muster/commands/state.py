"""`muster state`: show where Pulumi's state is, share it with other operators, release a lock, restore a version."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from cluster.plural import format_count
from infra.engine import lock, pulumi, remote_lock, remote_state
from infra.engine.command_line import format_command
from infra.engine.state_store import StateStore, replace_file
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import FILE_STATE, STATE_VARIABLE, Home, StackHome, private_folder
from muster.commands import screen
from muster.commands.stack_spec import find_host_target
from muster.commands.stacks import has_traces, missing_stack_error, name_stack

_VERSIONS = 10


def show(name: str, *, as_json: bool = False) -> None:
    """Print where the state of a stack is, who holds its locks, and its versions."""
    stack = name_stack(name)
    store = remote_state.check_store(stack.home) if stack.home.remote else remote_state.open_store(stack.home)
    described = describe_state(stack, store)
    if not has_traces(stack) and stack.name not in described["stacks"]:
        raise missing_stack_error(stack)
    if as_json:
        print(json.dumps(described, indent=2))
        return
    screen.out().print(f"state    {described['state']}", markup=False)
    screen.out().print(f"secrets  {described['secrets']}", markup=False)
    screen.out().print(f"stacks   {', '.join(described['stacks']) or 'none'}", markup=False)
    screen.out().print(f"lock     {described['lock'] or 'free'}", markup=False)
    versions = described["versions"]
    if not versions:
        return
    table = screen.new_table("version", "written", "size", right=("size",))
    for version in versions[:_VERSIONS]:
        table.add_row(version["id"], version["at"], screen.format_size(version["size"]))
    screen.out().print("", table)
    if len(versions) > _VERSIONS:
        screen.say(f"{len(versions) - _VERSIONS} older versions; --json prints all")


def describe_state(stack: StackHome, store: StateStore) -> dict[str, Any]:
    """Return what `show` prints, as plain data."""
    if stack.home.remote:
        remote_state.pull(stack)
    holder = remote_lock.read(store, stack) if stack.home.remote else None
    pulumi_locks = [str(entry) for entry in lock.pulumi_holders(stack)]
    versions = store.versions(remote_state.state_key(stack))
    return {
        "state": store.url,
        "stack": stack.name,
        "secrets": store.secrets_provider or f"passphrase in {stack.home.passphrase}",
        "stacks": remote_state.list_stacks(store),
        "lock": str(holder) if holder else ", ".join(pulumi_locks),
        "holder": asdict(holder) if holder else None,
        "versions": [{"id": v.id, "at": f"{v.at:%Y-%m-%d %H:%M:%S}", "size": v.size} for v in versions],
    }


def use(url: str) -> None:
    """Make this MUSTER_HOME use the state at a URL, or its own folder."""
    home = Home.of(os.environ)
    if url == FILE_STATE:
        home.state_url.unlink(missing_ok=True)
        screen.print_success(f"the state is in {home.with_file_state().state}")
    else:
        there = Home.of({**os.environ, STATE_VARIABLE: url})
        stacks = remote_state.list_stacks(remote_state.check_store(there))
        _refuse_second_copies(home, stacks)
        write_state_url(home, url)
        screen.print_success(f"the state is {url}; its stacks: {', '.join(stacks) or 'none yet'}")
        if stacks and not there.passphrase.exists() and not remote_state.open_store(there).secrets_provider:
            screen.say(f"{there.passphrase} is missing: get it from an operator who has it")
    if os.environ.get(STATE_VARIABLE) not in (None, "", url):
        screen.say(f"{STATE_VARIABLE} is set to {os.environ[STATE_VARIABLE]}, which has precedence: unset it")


def write_state_url(home: Home, url: str) -> None:
    """Record the URL of a home's state."""
    private_folder(home.root)
    replace_file(home.state_url, f"{url}\n".encode())


def create(url: str) -> None:
    """Create the bucket of a state, private, encrypted and versioned, unless it exists."""
    with screen.status("creating the bucket"):
        properties = remote_state.find_state_target(url).create_state(url)
    screen.print_success(f"created {url}: {', '.join(properties)}")
    screen.print_next_steps(
        [
            (f".venv/bin/muster state move '{url}'", "move the stacks of this machine there"),
            (f".venv/bin/muster state use '{url}'", "use it from now on, without moving anything"),
        ]
    )


def unlock(name: str, *, yes: bool) -> None:
    """Release the locks of a stack whose holder is gone."""
    stack = _require_remote(name, "the next command takes over a lock whose process is gone")
    store = remote_state.check_store(stack.home)
    remote_state.pull(stack)
    holder, pulumi_holders = remote_lock.read(store, stack), lock.pulumi_holders(stack)
    if holder is None and not pulumi_holders:
        screen.print_success(f"stack {name} is not locked")
        return
    described = str(holder or pulumi_holders[0])
    if not yes and not _confirmed(
        f"release the lock of {described}? If it still runs, both change the cluster. [y/N] "
    ):
        raise Stop("the lock was not released", code=FAILED)
    with lock.held_here(stack, "state unlock", wait=False, say=screen.say):
        if remote_lock.read(store, stack) != holder:
            raise Stop(f"the lock of stack {name} has another holder now; it was not released", "look again")
        remote_lock.break_lock(store, stack)
    screen.print_success(f"released the lock of {described}")
    screen.say(
        f"`{format_command('up', name)}` continues what it began, `{format_command('teardown', name)}` removes it"
    )


def restore(name: str, version: str) -> None:
    """Make an earlier version of a stack's state the current one; the damaged one stays as a version."""
    recovery = f"`{format_command('up', name)}` sets an unreadable state aside and finds the cluster's resources"
    stack = _require_remote(name, f"only a shared state has versions; {recovery}")
    store = remote_state.check_store(stack.home)
    key = remote_state.state_key(stack)
    content = store.read(key, version)
    if content is None:
        choices = ", ".join(entry.id for entry in store.versions(key)[:_VERSIONS]) or "none"
        raise Stop(f"version: stack {name} has no '{version}'", f"choose one of: {choices}", BAD_INPUT)
    try:
        resources = json.loads(content)["checkpoint"]["latest"].get("resources", [])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Stop(f"version: '{version}' is damaged, too", "choose another one", BAD_INPUT) from None
    with lock.held(stack, "state restore", wait=False, say=screen.say):
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        store.write(key, content)
    screen.print_success(f"restored version {version} with {format_count(len(resources), 'resource')}")
    screen.say(f"`{format_command('up', name)}` compares it with what exists")


def _require_remote(name: str, advice: str) -> StackHome:
    """Return a stack whose state is shared; raise Stop with `advice` on what helps if it is a folder."""
    stack = name_stack(name)
    if not stack.home.remote:
        raise Stop(
            f"state: the state of stack {name} is in {stack.home.state}, which only this machine uses",
            f"{advice}; `.venv/bin/muster state move URL` shares the state",
            BAD_INPUT,
        )
    return stack


def _refuse_second_copies(home: Home, stacks: list[str]) -> None:
    """Raise Stop if stacks of this machine have the names of stacks that are there already."""
    own = home.with_file_state()
    here = [name for name in remote_state.list_stacks(remote_state.open_store(own)) if name in stacks]
    twice = [name for name in here if find_host_target(own.stack(name)) is None]
    if twice:
        raise Stop(
            f"state: {', '.join(twice)} exists both in {own.state} and there; nothing was changed",
            "remove one of the clusters with `make teardown`, or rename a stack file",
            BAD_INPUT,
        )


def _confirmed(question: str) -> bool:
    if not screen.out().is_terminal:
        raise Stop("this asks for confirmation, but there is no terminal", "add --yes")
    return screen.out().input(question).strip().lower() in ("y", "yes")
