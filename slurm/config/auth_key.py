"""Slurm's authentication key: one key in slurm.key or, while it is rotated, the old and the new one in slurm.jwks.

A rotation has three steps, each of which every node has taken before the next one begins. Daemons that are one step
apart accept each other's messages: a message names its key, one without a name is verified with the default key, and a
daemon with a single key ignores the name (https://slurm.schedmd.com/authentication.html#multiple_key_setup). Programs
of running jobs have no key: slurmd signs for them.
"""

from __future__ import annotations

import base64
import json
import secrets
from hashlib import sha256
from typing import Any, Literal

KEY_PATH = "/etc/slurm/slurm.key"
KEY_SET_PATH = "/etc/slurm/slurm.jwks"
KEY_BYTES = 1024
_START = b'{"keys":'

RotationStep = Literal["accept", "sign", "drop"]
STEPS: dict[RotationStep, str] = {
    "accept": "every node accepts the old and the new key",
    "sign": "every node signs with the new key",
    "drop": "no node accepts the old key any more",
}


def generate_key() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(KEY_BYTES)


def is_key_set(content: bytes) -> bool:
    """Return whether this is the content of slurm.jwks; otherwise it is that of slurm.key."""
    return content.startswith(_START)


def find_next_step(content: bytes) -> RotationStep:
    """Return the step that follows on this content: `accept`, which starts a rotation, unless one is under way."""
    if not is_key_set(content):
        return "accept"
    # The old key is the first.
    return "sign" if json.loads(content)["keys"][0].get("use") == "default" else "drop"


def take_step(content: bytes, step: str) -> bytes:
    """Return the content after a step; the same content if another step is next, because this one was taken before."""
    if step != find_next_step(content):
        return content
    if step == "accept":
        new = generate_key()
        return _render([_describe(content, default=True), _describe(new)])
    old, new_entry = json.loads(content)["keys"]
    if step == "sign":
        return _render([_describe(_decode(old)), _describe(_decode(new_entry), default=True)])
    return _decode(new_entry)


def _describe(key: bytes, *, default: bool = False) -> dict[str, str]:
    entry = {
        "alg": "HS256",
        "kty": "oct",
        "kid": sha256(key).hexdigest()[:16],
        "k": base64.urlsafe_b64encode(key).decode(),
    }
    return entry | ({"use": "default"} if default else {})


def _decode(entry: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64decode(entry["k"])


def _render(keys: list[dict[str, str]]) -> bytes:
    return json.dumps({"keys": keys}, separators=(",", ":")).encode()
