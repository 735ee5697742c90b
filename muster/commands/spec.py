"""The spec of a stack, checked against this machine: every problem in one block before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from cluster import names
from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from cluster.spec.load import load
from cluster.spec.stack_file import cluster_of
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.aws.validate.budget import BY_PRICE
from infra.validate import EngineFacts, Issue, render, validate
from infra.validate.rest import rest
from muster.commands import screen


def on_this_machine(stack: StackHome) -> bool:
    """Whether the cluster takes its machines from the Docker engine here; also where the file cannot be read."""
    try:
        data = cluster_of(stack.file)
    except SpecError:
        return True
    return not isinstance(data, dict) or data.get("target") not in ("aws", "hosts")


def engine_facts() -> EngineFacts:
    """What Docker has to give; also what fails first where no engine runs."""
    from infra.targets.local import docker_engine as engine_client  # noqa: PLC0415  # Docker's library is half of what a check loads

    info = engine_client.connect().info()
    return EngineFacts(cpus=int(info["NCPU"]), memory_mb=int(info["MemTotal"]) // 2**20)


def name_is_free(spec: ClusterSpec, stack: str) -> None:
    """Refuses a cluster name that something on this engine has which is not this stack's."""
    if spec.target != "local":
        return
    from infra.targets.local import docker_engine as engine_client  # noqa: PLC0415  # as above

    name = names.network(spec.name)
    with engine_client.asking("name") as api:
        found = [network for network in api.networks(names=[name]) if network["Name"] == name]
    for network in found:
        engine_client.check_owner("network", name, network["Labels"], spec.name, stack)


def valid_spec(stack: StackHome, engine: EngineFacts | None) -> ClusterSpec:
    spec, issues = examined(stack, engine)
    return usable(stack, spec, issues)


def usable(stack: StackHome, spec: ClusterSpec | None, issues: Sequence[Issue]) -> ClusterSpec:
    """The spec where nothing speaks against it; what may, is said."""
    if spec is None or any(issue.level == "error" for issue in issues):
        raise Stop(f"{stack.file.name} cannot be used; nothing was started\n{render(issues)}", code=BAD_INPUT)
    for issue in issues:
        screen.say(f"warning: {issue.where}: {issue.message}; {issue.fix}")
    return spec


def examined(stack: StackHome, engine: EngineFacts | None) -> tuple[ClusterSpec | None, list[Issue]]:
    """Everything found, and the spec, unless it has errors that stay whatever prices are today."""
    try:
        data = cluster_of(stack.file)
    except SpecError as bad:
        return None, bad.issues
    try:
        spec = load(data)
    except SpecError as bad:
        return None, [*bad.issues, *rest(data, bad.issues, engine, stack.home.repo)]
    issues = validate(spec, engine, stack.home.repo)
    stay = any(issue.level == "error" and issue.code not in BY_PRICE for issue in issues)
    return (None if stay else spec), issues
