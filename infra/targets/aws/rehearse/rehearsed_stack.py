"""The stack that is rehearsed: the home of its commands, with the stack's spec and machines that fit this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster import names
from cluster.catalog.instances import InstanceType, add_types, find_entry, replace_types
from cluster.spec import ClusterSpec
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import FILE_STATE, STATE_VARIABLE, Home, StackHome, private_folder
from infra.targets.aws.account_types import REHEARSED_FILE, Entries, read_stored_types
from infra.targets.aws.plan import machines
from infra.targets.aws.rehearse.described_types import describe_types
from infra.targets.aws.rehearse.moto_server import ACCOUNT
from infra.targets.aws.spec import Aws, aws_section, region_of
from infra.targets.aws.validate.types import list_catalog_types, list_type_names
from infra.targets.registry import load_spec, read_spec

MEMORY_MB = 2048
"""Most memory of a machine in a rehearsal."""
HERE = "arm64" if platform.machine() == "aarch64" else "x86_64"
"""Architecture of this machine, as AWS calls it."""
_LOOPBACK = "127.0.0.1"
_WITH_ACCOUNT = ("permissions_boundary", "kms_key")
# They are policies and programs of the user, which no simulated account has.
_LEFT_OUT = ("policies", "hooks")


@dataclass(frozen=True)
class RehearsedStack:
    """A stack with a home of its own, whose spec and machines fit this machine."""

    home: Home
    name: str
    spec: ClusterSpec
    cidr: str
    """Address range of the VPC: one that this machine does not use."""
    nodes: int
    """Most nodes of a group that run: those of the job, and of a static group."""
    cluster: str
    """Name of the rehearsal in Docker."""
    labels: Mapping[str, str]
    """Labels of everything that the rehearsal creates there."""
    cuts: tuple[str, ...] = ()
    """A line for each group that has more nodes than run, each property that is left out, and each foreign CPU."""

    def environment(self, variables: Mapping[str, str], tools: Path) -> dict[str, str]:
        """Return the environment of muster's commands, without the caller's own AWS settings."""
        return render_environment(self.home, variables, tools)

    def change_section(self, section: str, **changes: Any) -> None:
        """Change fields of a section of the spec in the stack's file."""
        file = self.home.stack(self.name).file
        document = yaml.safe_load(file.read_text())
        spec = document["config"]["muster:cluster"]
        spec[section] = {**(spec.get(section) or {}), **changes}
        file.write_text(yaml.safe_dump(document))

    def copy_group(self, group: str, name: str, **changes: Any) -> None:
        """Add a group to the stack's file that is like another one, but for these fields; None removes a field."""
        file = self.home.stack(self.name).file
        document = yaml.safe_load(file.read_text())
        spec = document["config"]["muster:cluster"]
        fields = {**spec["groups"][group], **changes}
        spec["groups"][name] = {key: value for key, value in fields.items() if value is not None}
        spec.pop("budget", None)
        # A copy: YAML writes an object that appears twice as an anchor and an alias.
        file.write_text(yaml.safe_dump(json.loads(json.dumps(document))))

    def change_group(self, group: str, **changes: Any) -> None:
        """Change fields of a group in the stack's file; fields of a section are added to it."""
        file = self.home.stack(self.name).file
        document = yaml.safe_load(file.read_text())
        spec = document["config"]["muster:cluster"]
        fields = spec["groups"][group]
        for name, value in changes.items():
            fields[name] = {**fields.get(name, {}), **value} if isinstance(value, dict) else value
        # The example's budget is just enough for its own nodes.
        spec.pop("budget", None)
        file.write_text(yaml.safe_dump(document))


def render_environment(home: Home, variables: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Return the environment of muster's commands in a home, without the caller's own AWS settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    folders = {
        "MUSTER_HOME": str(home.root),
        "MUSTER_STACKS": str(home.stacks),
        "MUSTER_CACHE": str(home.cache),
        STATE_VARIABLE: FILE_STATE,
        "PATH": os.pathsep.join([str(home.tools), str(tools), os.environ.get("PATH", os.defpath)]),
    }
    # The commands call moto at this address; a proxy may stay in use for everything else.
    bypass = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), _LOOPBACK]))
    hidden = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return inherited | folders | hidden | {"NO_PROXY": bypass, "no_proxy": bypass} | dict(variables)


def label_rehearsal(stack: StackHome) -> tuple[str, dict[str, str]]:
    """Return the name of a stack's rehearsal in Docker and the labels of everything that it creates there.

    Raise Stop if the stack has parts for which a rehearsal has no stand-in.
    """
    spec = read_spec(stack.file)
    if missing := list_unsupported(spec, list_entries(spec, stack)):
        raise Stop(f"a rehearsal has no stand-in for {'; '.join(missing)}", "rehearse a copy without it", BAD_INPUT)
    home_labels = names.home_labels(_locate_home(stack))
    # Another checkout may rehearse a cluster of the same name at the same time.
    cluster = f"rehearsal-{spec.name}-{home_labels[names.HOME][:4]}"
    return cluster, names.labels(cluster, stack.name, "") | home_labels


def prepare_stack(stack: StackHome, cidr: str, cpus: int, nodes: int) -> RehearsedStack:
    """Create an empty home for the rehearsal of a stack with at most `nodes` nodes of each group."""
    cluster, labels = label_rehearsal(stack)
    document = yaml.safe_load(stack.file.read_text())
    raw = document["config"]["muster:cluster"]
    original = load_spec(raw)
    add_types(list_entries(original, stack))
    cuts = tuple(list_cuts(original, nodes))
    root = _locate_home(stack)
    shutil.rmtree(root, ignore_errors=True)
    home = Home(repo=stack.home.repo, root=private_folder(root), cache=stack.home.cache, stacks=root / "stacks")
    network = raw.get("network") or {}
    if not network.get("vpc_id"):
        raw["network"] = {**network, "cidr": cidr}
    for group in raw["groups"].values():
        group.update({size: min(group[size], nodes) for size in ("count", "min") if size in group})
    for field in _LEFT_OUT:
        raw["aws"].pop(field, None)
    home.stacks.mkdir()
    (home.stacks / stack.file.name).write_text(yaml.safe_dump(document))
    spec = load_spec(raw)
    catalog = list_entries(spec, stack)
    scaled = list_scaled_types(spec)
    entries = {name: scale_down(catalog[name], cpus) for name in scaled}
    # Machines run on this one, whatever their own CPUs are.
    permanent = [name for name in list_types(spec) if name not in scaled and catalog[name]["architecture"] != HERE]
    entries |= {name: catalog[name] | {"architecture": HERE} for name in permanent}
    (root / REHEARSED_FILE).write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    replace_types(entries)
    return RehearsedStack(home, stack.name, spec, cidr, nodes, cluster, labels, cuts)


def _locate_home(stack: StackHome) -> Path:
    return stack.home.root / "rehearsals" / stack.name


def list_cuts(spec: ClusterSpec, nodes: int) -> list[str]:
    """Return a line for each group of which at most `nodes` nodes run, each property left out, each foreign CPU."""
    section = aws_section(spec)
    left_out = [
        f"aws.{field}: left out, because the simulated account does not have them"
        for field in _LEFT_OUT
        if section and getattr(section, field) != Aws.model_fields[field].default
    ]
    sizes = {name: group.count if group.count is not None else group.max or 0 for name, group in spec.groups.items()}
    cut = [f"groups.{name}: {nodes} of {size} nodes run (--nodes)" for name, size in sizes.items() if size > nodes]
    foreign = [
        f"{where}: {machine.name} runs as {HERE}, although its CPUs are {machine.architecture}"
        for where, machine in list_catalog_types(spec).items()
        if machine.architecture != HERE
    ]
    return [*cut, *left_out, *foreign]


def list_entries(spec: ClusterSpec, stack: StackHome) -> Entries:
    """Return the entry of each type of a spec: of the catalog, or what AWS or moto says of a type that it lacks."""
    named = set(list_type_names(spec).values())
    described = describe_types(named, read_stored_types(stack.home.root), region_of(spec))
    entries = {name: find_entry(name) or described.get(name) for name in named}
    return {name: entry for name, entry in entries.items() if entry}


def list_unsupported(spec: ClusterSpec, entries: Entries) -> list[str]:
    """Return the properties of a spec for which a rehearsal has no stand-in, each with its value.

    `entries` are the types that are described.
    """
    return [
        *(
            f"{where}: '{name}' (allowed: a type of the catalog, or one that AWS has described to `muster check`)"
            for where, name in list_type_names(spec).items()
            if name and name not in entries
        ),
        *(
            f"aws.{field}: '{value}' (allowed: one of account {ACCOUNT}, which a rehearsal simulates)"
            for field in _WITH_ACCOUNT
            if (value := getattr(aws_section(spec), field, None)) is not None and f":{ACCOUNT}:" not in value
        ),
    ]


def list_types(spec: ClusterSpec) -> list[str]:
    """Return the names of all instance types of a spec."""
    fixed = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    return sorted({kind.name for kind in (*fixed, *list_compute_types(spec))})


def list_scaled_types(spec: ClusterSpec) -> list[str]:
    """Return the names of the types that Slurm is configured with, except those of controller and login.

    Rules require a minimum of memory for the controller, and Slurm schedules nothing on either.
    """
    permanent = {machines.controller(spec).name, machines.login(spec).name}
    return sorted({kind.name for kind in list_compute_types(spec)} - permanent)


def list_compute_types(spec: ClusterSpec) -> list[InstanceType]:
    """Return the instance types that compute nodes may have."""
    return [kind for group in spec.groups.values() for kind in machines.compute_types(group)]


def scale_down(entry: dict[str, Any], cpus: int) -> dict[str, Any]:
    """Return the entry of an instance type with no more CPUs and memory than a container can have."""
    vcpus = min(entry["vcpus"], cpus)
    return entry | {
        "architecture": HERE,
        "vcpus": vcpus,
        "cores": min(entry["cores"], vcpus),
        "memory_mb": min(entry["memory_mb"], MEMORY_MB),
    }
