"""The spec's own programs, in the form in which machines and policies need them."""

from __future__ import annotations

from cluster.inventory import Role
from infra.targets.aws.node.hooks import NodeHook
from infra.targets.aws.spec import Aws


def node_hooks(section: Aws) -> tuple[NodeHook, ...]:
    """Return the programs in the order in which a machine runs them."""
    return tuple(
        NodeHook(
            name=name,
            when=hook.when,
            object=hook.script.removeprefix("s3://"),
            sha256=hook.sha256,
            args=hook.args,
            roles=hook.roles,
            timeout_s=hook.timeout_s,
        )
        for name, hook in sorted(section.hooks.items())
    )


def objects_by_role(section: Aws) -> dict[Role, list[str]]:
    """Return the objects, as `bucket/key`, that the machines of each role fetch."""
    roles: tuple[Role, ...] = ("controller", "login", "compute")
    hooks = node_hooks(section)
    return {role: sorted({hook.object for hook in hooks if role in hook.roles}) for role in roles}
