"""A stack in an account of moto whose commands meet errors; its instances report at once, without a machine."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends

from bootstrap.wheels import wheels_folder
from cluster.spec import ClusterSpec
from infra.engine.stop import FAILED, Stop
from infra.home import Home, StackHome, private_folder
from infra.targets.aws.build.bundle import ARCHITECTURES
from infra.targets.aws.plan import images
from infra.targets.aws.rehearse import moto_calls, moto_gaps
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.aws.rehearse.existing_resources import create_existing
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.rehearse.moto_server import ACCOUNT, Interference, Moto, listening
from infra.targets.aws.rehearse.plugin import PLUGIN
from infra.targets.aws.rehearse.rehearsal import run_command
from infra.targets.aws.rehearse.rehearsed_stack import render_environment
from infra.targets.aws.rehearse.simulated_boot import simulate_boot
from infra.targets.aws.spec import region_of
from infra.targets.registry import load_spec

MACHINE = "machine "
"""Prefix of a machine in the list of what costs money."""
# By default Pulumi starts no more steps of `up` after an error. With this, one run meets many.
_MANY_ERRORS = {"PULUMI_CONTINUE_ON_ERROR": "true"}
_VPC_CIDR = "10.20.0.0/16"
_MORE_BUDGET = 10
_EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


@dataclass
class FailingCluster:
    """A stack, its account, and what the account had before."""

    stack: StackHome
    moto: Moto
    original: ClusterSpec
    """The spec with the images, the key and the zones that the stack's file does not name any more."""
    before: set[str] = field(default_factory=set)
    earlier_receipts: dict[Path, int] = field(default_factory=dict)
    """Receipts before the last `teardown`, with their times in ns: two within a second have the same name."""
    expects_receipt: bool = False
    """Whether there was anything to remove before the last `teardown`."""
    providers: dict[str, int] = field(default_factory=dict)
    """Ports of the providers that already run, by name; the engine starts all others."""

    @property
    def account(self) -> str:
        """Number of the account."""
        return ACCOUNT

    @property
    def region(self) -> str:
        return region_of(self.original)

    @property
    def spec(self) -> ClusterSpec:
        return _load(self.stack.file.read_text())

    def client(self, service: str) -> Any:
        return self.moto.client(service, self.region)

    def read_document(self) -> dict[str, Any]:
        document: dict[str, Any] = yaml.safe_load(self.stack.file.read_text())
        return document

    def add_nodes(self, number: int) -> None:
        """Change the size of every group in the stack's file."""
        document = self.read_document()
        for group in document["config"]["muster:cluster"]["groups"].values():
            size = "count" if group.get("count") is not None else "max"
            group[size] += number
        self.stack.file.write_text(yaml.safe_dump(document))

    def run(self, command: str, *options: str, errors: Interference | None = None) -> tuple[int, str]:
        """Run a command of muster with errors; return its exit code and output."""
        lines: list[str] = []
        if command == "teardown":
            self.earlier_receipts = self._list_receipts()
            self.expects_receipt = self.stack.state.exists() or bool(self.list_left())
        line = [sys.executable, "-m", "muster.cli", *command.split(), "--stack", self.stack.name, *options]
        with self.interfere(errors):
            code = run_command(line, self._engine_environment(), self.stack.home.repo, lines.append)
        output = "\n".join(lines)
        if "Traceback" in output:
            raise Stop(f"`muster {command}` ended with a traceback:\n{output}", code=FAILED)
        return code, output

    @contextmanager
    def interfere(self, errors: Interference | None) -> Iterator[None]:
        """Let calls meet errors during a block."""
        self.moto.interfere = errors
        try:
            yield
        finally:
            self.moto.interfere = None

    def environment(self) -> dict[str, str]:
        return render_environment(self.stack.home, self.moto.environment(self.region), PLUGIN)

    def _engine_environment(self) -> dict[str, str]:
        attached = ",".join(f"{name}:{port}" for name, port in self.providers.items())
        return self.environment() | _MANY_ERRORS | ({"PULUMI_DEBUG_PROVIDERS": attached} if attached else {})

    def list_left(self) -> set[str]:
        """Return what the account has besides what it had before, whatever its tags."""
        return list_resources(self) - self.before

    def list_paid(self) -> set[str]:
        """Return what costs money in the account, and its buckets, read from moto itself: it has to be fast."""
        ec2 = ec2_backends[ACCOUNT][self.region]
        machines = (machine for reservation in ec2.reservations.values() for machine in reservation.instances)
        return {
            *MotoAccount(ACCOUNT, self.region).list_billed(),
            *(f"{MACHINE}{machine.id}" for machine in machines if machine.state != "terminated"),
            *(f"image {id_}" for id_ in ec2.amis),
            *(f"snapshot {id_}" for id_ in ec2.snapshots),
            *(f"bucket {name}" for name in s3_backends[ACCOUNT]["aws"].buckets),
        }

    def forget_ended_machines(self) -> None:
        """Forget machines that have ended, as AWS does after an hour: moto compares all of them with every filter."""
        reservations = ec2_backends[ACCOUNT][self.region].reservations
        for id_, reservation in list(reservations.items()):
            if all(machine.state == "terminated" for machine in reservation.instances):
                del reservations[id_]

    def require_nothing_left(self, when: str) -> None:
        """Raise Stop if the account or the receipt of the last `teardown` still has anything of the cluster.

        There is no receipt if there was nothing to remove.
        """
        new = [path for path, time_ns in self._list_receipts().items() if self.earlier_receipts.get(path) != time_ns]
        if len(new) > 1 or (not new and self.expects_receipt):
            names = ", ".join(sorted(path.name for path in new)) or "none"
            raise Stop(f"{when}: `teardown` has to write one receipt; new are: {names}", code=FAILED)
        in_receipt = json.loads(new[0].read_text())["left"] if new else 0
        left = sorted(self.list_left())
        if left or in_receipt:
            what = f"{when}: the account has {', '.join(left) or 'nothing'}, the receipt says {in_receipt} left"
            raise Stop(what, code=FAILED)

    def _list_receipts(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.stack.home.receipts.glob("*.json")}


@lru_cache(maxsize=1)
def _load(text: str) -> ClusterSpec:
    """Return the spec of a stack's file. Operations read it in every run, which took a quarter of their time."""
    return load_spec(yaml.safe_load(text)["config"]["muster:cluster"])


@contextmanager
def open_failing_cluster(stack: StackHome) -> Iterator[FailingCluster]:
    """Yield a copy of a stack with a home of its own, in an account that has what its spec names."""
    moto_calls.apply()
    moto_gaps.apply()
    # moto prints a traceback for every request that it lacks.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto = Moto()
    moto.reset()
    with listening(moto) as moto.url, simulate_boot():
        cluster = FailingCluster(*_copy_stack(stack, moto))
        for path in images.parameters(cluster.spec).values():
            moto_gaps.publish_image(path, cluster.region)
        create_existing(cluster.original, MotoAccount(ACCOUNT, cluster.region), _VPC_CIDR)
        _create_policies_and_hooks(cluster)
        cluster.before = list_resources(cluster)
        yield cluster


def _copy_stack(stack: StackHome, moto: Moto) -> tuple[StackHome, Moto, ClusterSpec]:
    """Create an empty home with a copy of a stack that keeps no storage and may cost more.

    Its managed policies become policies of the account, because moto has none of AWS's. The copy names no key, image or
    zone, so that `up` creates a key and looks images and a zone up.
    """
    root = locate_home(stack)
    shutil.rmtree(root, ignore_errors=True)
    home = Home(repo=stack.home.repo, root=private_folder(root), cache=root / "cache", stacks=root / "stacks")
    document = yaml.safe_load(stack.file.read_text())
    spec = document["config"]["muster:cluster"]
    for entry in (spec.get("storage") or {}).values():
        entry.pop("keep", None)
        if entry.get("kind") in ("efs", "fsx-lustre"):
            entry["keep"] = False
    # The budget of a stack is just enough for its own nodes, and a later change adds some.
    for limit in {"usd_per_hour", "usd_per_month", "usd_total"} & set(spec.get("budget") or {}):
        spec["budget"][limit] *= _MORE_BUDGET
    for role, policies in (spec["aws"].get("policies") or {}).items():
        spec["aws"]["policies"][role] = [f"arn:aws:iam::{ACCOUNT}:policy/{arn.rpartition('/')[2]}" for arn in policies]
    original = load_spec(copy.deepcopy(spec))
    for field_name in ("kms_key", "ami", "plain_ami", "zones"):
        spec["aws"].pop(field_name, None)
    for group in spec["groups"].values():
        (group.get("capacity") or {}).pop("zones", None)
    home.stacks.mkdir()
    (home.stacks / stack.file.name).write_text(yaml.safe_dump(document))
    # No machine here boots, so that the wheels of machines are never used.
    for architecture in ARCHITECTURES.values():
        wheels_folder(home.repo, home.cache, architecture).mkdir(parents=True)
    (home.cache / "pulumi").symlink_to(stack.home.cache / "pulumi")
    return home.stack(stack.name), moto, original


def _create_policies_and_hooks(cluster: FailingCluster) -> None:
    section = cluster.read_document()["config"]["muster:cluster"]["aws"]
    arns = {arn for policies in (section.get("policies") or {}).values() for arn in policies}
    for arn in sorted(arns):
        cluster.client("iam").create_policy(PolicyName=arn.rpartition("/")[2], PolicyDocument=json.dumps(_EVERYTHING))
    for hook in (section.get("hooks") or {}).values():
        script = urlsplit(hook["script"])
        cluster.client("s3").create_bucket(Bucket=script.netloc)
        cluster.client("s3").put_object(Bucket=script.netloc, Key=script.path.lstrip("/"), Body=b"abc")


@contextmanager
def use_environment(cluster: FailingCluster) -> Iterator[None]:
    """Let this process call the account, as the commands do."""
    earlier = dict(os.environ)
    os.environ.clear()
    os.environ.update(cluster.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(earlier)


def locate_home(stack: StackHome) -> Path:
    """Return the folder of the last rehearsal of errors."""
    return stack.home.root / "rehearsals" / f"{stack.name}-errors"
