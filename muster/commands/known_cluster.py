"""Which cluster a stack is, on which target and where: from what `up` left behind, the stack file, or labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from cluster import names
from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from cluster.spec.load import read
from infra.engine.stop import Stop
from infra.home import StackHome
from infra.targets.aws.state import made
from infra.targets.local import docker_engine as engine_client
from infra.targets.registry import target
from infra.targets.target import Leftover, Leftovers, Target
from muster.commands.where import stack_home


@dataclass(frozen=True)
class KnownCluster:
    name: str
    stack: str
    target_name: str
    region: str = ""
    account: str = ""
    """Where its state says it was made; empty where no state does."""

    @property
    def target(self) -> Target:
        return target(self.target_name)

    @property
    def on_this_machine(self) -> bool:
        return self.target_name == "local"

    def check_account(self) -> None:
        """Stops where the credentials are of another account than what was made."""
        if self.account:
            from infra.targets.aws.caller import check_account  # noqa: PLC0415  # loads AWS's libraries

            check_account(self.name, self.account, self.region)

    def leftovers(self) -> Leftovers:
        """Of this stack alone."""
        search = self.target.leftovers(self.name, self.region)
        return replace(search, found=own(search.found, self.stack))


def known_cluster(stack: StackHome) -> KnownCluster | None:
    """None where nothing exists. What was made goes before what the stack file says: that may have been changed since,
    or be unreadable."""
    spec = _spec(stack)
    try:
        written = json.loads(stack.inventory.read_text())
        return _placed(stack, written["cluster"], written["target"], spec)
    except (OSError, ValueError, KeyError):
        pass
    if in_state := made(stack.state):
        return _placed(stack, in_state.cluster or (spec.name if spec else ""), "aws", spec)
    return _placed(stack, spec.name, spec.target, spec) if spec else _labelled(stack.name)


def own(found: list[Leftover], stack: str) -> list[Leftover]:
    """Another stack may use the same cluster name by mistake; what is labelled as another's is not ours to remove."""
    return [leftover for leftover in found if leftover.stack in ("", stack)]


def _placed(stack: StackHome, cluster: str, target_name: str, spec: ClusterSpec | None) -> KnownCluster:
    """What exists is where the state says; the stack file may have been changed since."""
    if target_name != "aws":
        return KnownCluster(cluster, stack.name, target_name)
    in_state = made(stack.state)
    region = (in_state and in_state.region) or (spec.aws.region if spec and spec.aws else "")
    if not cluster or not region:
        what = "which cluster it is" if not cluster else f"in which region cluster {cluster} is"
        raise Stop(f"nothing says {what}", f"put {stack.file} back")
    return KnownCluster(cluster, stack.name, target_name, region, in_state.account if in_state else "")


def _spec(stack: StackHome) -> ClusterSpec | None:
    try:
        return read(stack.file)
    except SpecError:
        return None


def _labelled(stack: str) -> KnownCluster | None:
    """No file says which cluster it is, but everything on this machine says which stack made it."""
    wanted = {"label": f"{names.STACK}={stack}"}
    with engine_client.asking(f"stack {stack}") as api:
        found = [*api.containers(all=True, filters=wanted), *api.networks(filters=wanted)]
        found += api.volumes(filters=wanted)["Volumes"] or []
    clusters = sorted({thing["Labels"][names.CLUSTER] for thing in found})
    if len(clusters) > 1:
        raise Stop(
            f"stack {stack} has no readable stack file, and several clusters carry its label: {', '.join(clusters)}",
            f"write the name of the one to remove into {stack_home(stack).file}",
        )
    return KnownCluster(clusters[0], stack, "local") if clusters else None
