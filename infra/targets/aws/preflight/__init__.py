"""The pre-flight: checks of a spec that only the account can answer, before any resource exists."""

from infra.targets.aws.preflight.account import Account, load_session
from infra.targets.aws.preflight.checks import PreflightOptions, PreflightResult, run_preflight

__all__ = ["Account", "PreflightOptions", "PreflightResult", "load_session", "run_preflight"]
