"""SSH through Session Manager: it needs no inbound port, and the host name is an instance id."""

from __future__ import annotations

_PROXY_COMMAND = (
    "aws ssm start-session --target %h --document-name AWS-StartSSHSession --parameters portNumber=%p --region {region}"
)


def render_proxy_command(region: str) -> str:
    """Return the ProxyCommand of ssh for machines in a region."""
    return _PROXY_COMMAND.format(region=region)
