"""The AWS account behind the credentials of whoever types: found, or said to be missing; then the pre-flight."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.commands import credentials, screen
from infra.engine.stop import Stop
from infra.spec import ClusterSpec
from infra.validate import Issue, render

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account

NONE = "no AWS credentials found"


def account(spec: ClusterSpec) -> Account | None:
    """None where there are no credentials; loads AWS's libraries only where there may be some."""
    if not credentials.likely(os.environ):
        return None
    from infra.targets.aws import preflight  # noqa: PLC0415  # loads AWS's libraries

    found = preflight.credentials(metadata=credentials.on_ec2())
    return preflight.Account(found, spec.aws.region if spec.aws else "") if found else None


def reached(spec: ClusterSpec) -> None:
    """Stops before anything is started where AWS would not even say who is asking."""
    found = account(spec)
    if found is None:
        fix = "`aws sso login` or `aws configure`, or set AWS_PROFILE; `make check` and `make cost` work without"
        raise Stop(f"{NONE}; nothing was started", fix)
    from infra.targets.aws.preflight import Asking, preflight  # noqa: PLC0415  # loads AWS's libraries

    done = preflight(spec, found, Asking(checks=()))
    if done.identity is None:
        raise Stop(f"AWS was not reached; nothing was started\n{render(done.issues)}")


def flight_issues(spec: ClusterSpec) -> list[Issue]:
    """What the account says about the cluster; who was asked, and how long it took, is shown."""
    found = account(spec)
    if found is None:
        screen.say(f"{NONE}: quotas, zones, capacity, images and rights are not checked")
        return []
    from infra.targets.aws.preflight import Asking, preflight  # noqa: PLC0415  # as above

    with screen.out().status("asking AWS") as line:
        done = preflight(spec, found, Asking(tell=line.update))
    if done.identity:
        who = f"account {done.identity.account} as {done.identity.arn}"
        screen.say(f"asked {who} in {found.region}, {done.seconds:.1f} s; nothing was created")
    return list(done.issues)
