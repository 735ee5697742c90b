"""SSH through Session Manager: no inbound port, the host's name is the id of a machine."""

from __future__ import annotations

_SSM = (
    "aws ssm start-session --target %h --document-name AWS-StartSSHSession --parameters portNumber=%p --region {region}"
)


def through_session_manager(region: str) -> str:
    """Return the ProxyCommand of ssh for machines in a region."""
    return _SSM.format(region=region)
