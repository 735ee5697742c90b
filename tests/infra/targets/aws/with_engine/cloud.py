"""Where a stack under test is made: on moto with the plugin of these tests, or in an account with the real plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from bootstrap import wheels
from cluster.spec import ClusterSpec
from infra.home import Home
from infra.targets.aws.plan import images
from tests.infra.targets.aws.with_engine.moto_gaps import publish_image
from tests.moto_server import ACCOUNT, REGION, Call, Moto

REPO = Path(__file__).resolve().parents[5]
PLUGIN = Path(__file__).parent / "plugin"
# Machines of AWS take their time; those of moto have none.
_REAL_S, _MOTO_S = 3600, 300


@dataclass(frozen=True)
class Cloud:
    account: str
    region: str
    client: Callable[[str], Any]
    """For the tests themselves: a client of this service."""
    variables: Mapping[str, str]
    """What AWS's libraries read: credentials, and an endpoint where there is one."""
    longest_s: int
    """That one command may take."""
    tools: tuple[Path, ...] = ()
    """In front of PATH."""
    cache: Path | None = None
    """MUSTER_CACHE; None: each stack has its own."""
    furnish: Callable[[ClusterSpec, Path], None] = lambda *_: None
    """Puts what AWS has everywhere, and a stack needs, into the account and the cache."""
    calls: list[Call] = field(default_factory=list)
    """Every API call, where somebody counts."""


def on_moto(server: Moto) -> Cloud:
    return Cloud(
        ACCOUNT,
        REGION,
        server.client,
        server.environment(),
        _MOTO_S,
        tools=(PLUGIN,),
        furnish=_furnish,
        calls=server.calls,
    )


def in_account(account: str, region: str, env: Mapping[str, str]) -> Cloud:
    return Cloud(
        account,
        region,
        lambda service: boto3.client(service, region_name=region),  # type: ignore[call-overload]
        {name: value for name, value in env.items() if name.startswith("AWS_")},
        _REAL_S,
        cache=Home.of(env).cache,
    )


def _furnish(spec: ClusterSpec, cache: Path) -> None:
    """Images, and the real tools; wheels, which come from a package index, are none: no machine here unpacks them."""
    for path in images.parameters(spec).values():
        publish_image(path)
    wheels.wheels_folder(REPO, cache).mkdir(parents=True)
    (cache / "pulumi").symlink_to(Home.of(os.environ).cache / "pulumi")
