"""The fields of alerts: where they are sent, and when a queue counts as stuck."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

from pydantic import field_validator

from cluster.spec.base import SECRET, SpecModel, field

ENCRYPTED = "secure:"
ADDRESS = r"https?://[^\s\"'\\]+"
WEBHOOK = rf"^({ADDRESS}|{ENCRYPTED}\S+)$"
_DIGEST_CHARS = 16


class Alerts(SpecModel):
    """Alerts about drained and lost nodes, failed gates, stuck queues and a spent budget."""

    webhook: Annotated[str | None, SECRET] = field(
        "address that gets alerts as Slack does; a secret, set by `muster alerts`",
        "safe",
        default=None,
        pattern=WEBHOOK,
        examples=[{"secure": "v1:..."}],
    )
    stuck_minutes: int = field(
        "minutes after which jobs that wait while nothing runs are reported", "safe", default=30, ge=1, le=10080
    )

    @field_validator("webhook", mode="before")
    @classmethod
    def _join_encrypted(cls, value: Any) -> Any:
        """Turn Pulumi's form of an encrypted value, `secure: ...`, into text."""
        if isinstance(value, dict) and list(value) == ["secure"] and isinstance(value["secure"], str):
            return f"{ENCRYPTED}{value['secure']}"
        return value

    @property
    def is_plain(self) -> bool:
        """Whether the address is readable, as it must not be in a stack file."""
        return self.webhook is not None and not self.webhook.startswith(ENCRYPTED)

    def without_secret(self) -> Alerts:
        """Return the settings with a digest in place of the address, which changes when the address does."""
        if not self.is_plain:
            return self
        return self.model_copy(update={"webhook": f"{ENCRYPTED}{_digest(self.webhook or '')}"})


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
