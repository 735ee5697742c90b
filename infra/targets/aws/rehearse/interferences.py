"""Errors with which AWS answers a share of calls, or calls of one kind."""

from __future__ import annotations

import random

from infra.targets.aws.rehearse.moto_errors import SHORTAGE, throttle_code
from infra.targets.aws.rehearse.moto_server import Interference


def reject_some(share: float, seed: int) -> Interference:
    """Return an interference that throttles a share of all calls, drawn from a seed."""
    draws = random.Random(f"{seed} throttling")  # noqa: S311  # no secret: a seed must repeat it
    return lambda service, _action, _params: throttle_code(service) if draws.random() < share else ""


def refuse_launches(market: str = "") -> Interference:
    """Return an interference that finds no capacity, for one market or for all launches."""

    def interfere(_service: str, action: str, params: dict[str, str]) -> str:
        is_chosen = not market or params.get("InstanceMarketOptions.MarketType") == market
        return SHORTAGE if action == "RunInstances" and "DryRun" not in params and is_chosen else ""

    return interfere
