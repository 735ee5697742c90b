"""Time: synchronised clocks, which Slurm's credentials and comparable logs need."""

from __future__ import annotations

from bootstrap.action import (
    APT_GET,
    FETCH_LISTS,
    INSTALL_TIMEOUT_S,
    Action,
    enable_unit,
    install_packages,
    write_file,
)
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.steps.step import Step
from cluster.inventory import Node

SOURCES = "/etc/chrony/sources.d/muster.sources"
SOURCE = "server {address} prefer iburst minpoll 4 maxpoll 4\n"
PACKAGE = "chrony"


def plan_time(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start chrony, with the cloud's own time server if it has one."""
    server = desired.cloud.time_server if desired.cloud else ""
    sources = write_file(facts, SOURCES, SOURCE.format(address=server)) if server else []
    if sources:
        sources.append(Action(f"use the time server {server}", "systemctl restart chrony"))
    return [*_start_chrony(facts), *sources]


def _start_chrony(facts: Facts) -> list[Action]:
    if "chrony" in facts.active and "chrony" in facts.enabled:
        return []
    # A machine that has its other packages from the controller's archive has no package lists.
    install = f"{FETCH_LISTS}{APT_GET} install -y --no-install-recommends {PACKAGE}"
    script = f"if ! command -v chronyd >/dev/null; then\n{install}\nfi\n{enable_unit('chrony')}\nsystemctl start chrony"
    fix = "give the node access to its package mirror, or use an image with chrony"
    log = "journalctl -u chrony"
    return [Action("start chrony", script, timeout=INSTALL_TIMEOUT_S, log=log, fix=fix, slow=True)]


def bake_chrony(facts: Facts, contents: ImageContents) -> list[Action]:
    """Install chrony, except in containers."""
    missing = PACKAGE not in facts.packages and not facts.container
    return [install_packages([PACKAGE])] if missing else []


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip containers, and machines whose owner sets the clock: chrony would replace the owner's time service."""
    if node.adopted:
        return "the machine's owner sets its clock"
    return "a container uses the clock of its host" if facts.container else ""


def _list_packages(node: Node) -> tuple[str, ...]:
    return (PACKAGE,)


STEP = Step(
    "time",
    "clock synchronised by chrony",
    plan_time,
    skip=skip,
    units=("chrony",),
    packages=_list_packages,
    bake=bake_chrony,
)
