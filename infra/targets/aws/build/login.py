"""The machine people log in to."""

from __future__ import annotations

from infra.targets.aws.build.fixed_machine import FixedMachine
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Site
from infra.targets.aws.build.security_groups import SecurityGroups


class Login(FixedMachine):
    def __init__(self, site: Site, network: Network, groups: SecurityGroups) -> None:
        super().__init__("Login", "login", site, network, groups)
