"""AWS API calls with retries for throttling: bounded in time, and never for a shortage of capacity."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.targets.aws.launcher.error_codes import FIXES
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.launcher.retries import note_retry
from slurm.power.launcher import LauncherError

Answer = dict[str, Any]

DEADLINE_S = 120.0
AT_ONCE = 16
"""Most calls that one launcher makes at the same time."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 20.0
# botocore would retry server errors by itself, and EC2 reports a shortage as one: it would be requested repeatedly.
_CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=60, max_pool_connections=AT_ONCE)


def pause(seconds: float) -> None:
    """Wait. Unlike `time.sleep` as a default argument, it waits with what rehearsals and tests put in its place."""
    time.sleep(seconds)


class AwsApi:
    """The API of one region; tests pass another clock."""

    def __init__(
        self,
        region: str,
        *,
        deadline_s: float = DEADLINE_S,
        sleep: Callable[[float], None] = pause,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._region, self._deadline_s = region, deadline_s
        self._sleep, self._clock = sleep, clock
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, **params: Any) -> Answer:
        """Make one API call; raise LauncherError. Calls that must not happen twice carry a client token."""
        client = self._client(service)
        deadline, wait = self._clock() + self._deadline_s, _FIRST_WAIT_S
        while True:
            try:
                answer: Answer = getattr(client, operation)(**params)
                return answer
            except (ClientError, BotoCoreError) as error:
                fault = classify_error(error)
                # Jitter: the controllers of one account must not all come back at the same moment.
                jittered = wait * random.uniform(0.5, 1)  # noqa: S311
                if fault.kind != "throttle" or self._clock() + jittered > deadline:
                    raise LauncherError(operation, fault, FIXES[fault.kind]) from error
                note_retry(fault.code, jittered)
                self._sleep(jittered)
                wait = min(2 * wait, _LONGEST_WAIT_S)

    def pages(self, service: str, operation: str, key: str, **params: Any) -> list[Answer]:
        """Return the items under `key` from all pages of a call that pages with NextToken."""
        items: list[Answer] = []
        token: str | None = None
        while True:
            answer = self.call(service, operation, **params, **({"NextToken": token} if token else {}))
            items += answer.get(key, [])
            token = answer.get("NextToken")
            if not token:
                return items

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = boto3.client(service, region_name=self._region, config=_CONFIG)
        return self._clients[service]
