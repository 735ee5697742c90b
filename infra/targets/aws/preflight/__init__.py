"""The pre-flight: what only the account can say about a cluster, before anything exists."""

from infra.targets.aws.preflight.account import Account, credentials
from infra.targets.aws.preflight.checks import Asking, Found, preflight

__all__ = ["Account", "Asking", "Found", "credentials", "preflight"]
