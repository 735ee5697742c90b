"""The cloud of a stack under test: moto with the test plugin, or a real account with the real plugin."""

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
from infra.targets.aws.rehearse.moto_gaps import publish_image
from infra.targets.aws.rehearse.plugin import PLUGIN
from tests.moto_server import ACCOUNT, REGION, Call, Moto

REPO = Path(__file__).resolve().parents[5]
# Real instances take minutes to start; moto's start at once.
_REAL_TIMEOUT_S, _MOTO_TIMEOUT_S = 3600, 600


@dataclass(frozen=True)
class Cloud:
    """Where a stack under test is created, and how to reach it."""

    account: str
    region: str
    client: Callable[[str], Any]
    """Returns a client of a service, for the tests themselves."""
    variables: Mapping[str, str]
    """Environment variables of the AWS libraries: credentials, and the endpoint if there is one."""
    timeout_s: int
    """Timeout of one command."""
    tools: tuple[Path, ...] = ()
    """Folders to put in front of PATH."""
    cache: Path | None = None
    """MUSTER_CACHE; if None, each stack has its own."""
    furnish: Callable[[ClusterSpec, Path], None] = lambda *_: None
    """Adds what a stack needs and every real account has, to the account and the cache."""
    calls: list[Call] = field(default_factory=list)
    """Every API call, if calls are recorded."""


def on_moto(server: Moto) -> Cloud:
    return Cloud(
        ACCOUNT,
        REGION,
        server.client,
        server.environment(),
        _MOTO_TIMEOUT_S,
        tools=(PLUGIN,),
        furnish=_furnish,
        calls=server.calls,
    )


def in_account(account: str, region: str, env: Mapping[str, str]) -> Cloud:
    return Cloud(
        account,
        region,
        lambda service: boto3.client(service, region_name=region),
        {name: value for name, value in env.items() if name.startswith("AWS_")},
        _REAL_TIMEOUT_S,
        cache=Home.of(env).cache,
    )


def _furnish(spec: ClusterSpec, cache: Path) -> None:
    """Publish the images and link the real tools; the folder of wheels stays empty because no machine here boots."""
    for path in images.parameters(spec).values():
        publish_image(path)
    wheels.wheels_folder(REPO, cache).mkdir(parents=True)
    (cache / "pulumi").symlink_to(Home.of(os.environ).cache / "pulumi")
