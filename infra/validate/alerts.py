"""Rules on alerts: the address of the webhook is a secret."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error


def check_webhook_encrypted(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse an address that everybody can read who can read the stack file; the message does not show it."""
    if spec.alerts.is_plain:
        message = "the address is a secret, but the file has it in plain text"
        yield error(
            "plain_webhook", "alerts.webhook", message, "remove it, then run `muster alerts`, which encrypts it"
        )
