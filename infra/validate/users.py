"""Rules on users: names and ids must be free, and keys must be public keys."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error

# Accounts of Debian and of the packages on a node.
SYSTEM = frozenset(
    {"backup", "bin", "daemon", "games", "irc", "list", "lp", "mail", "man", "messagebus", "munge", "mysql", "news"}
    | {"nobody", "proxy", "root", "slurm", "sshd", "sync", "sys", "uucp", "www-data"}
)
KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
FIX = "paste the one line of the .pub file, for example the output of `cat ~/.ssh/id_ed25519.pub`"


def check_names(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse names of system accounts."""
    for name in spec.users:
        if name in SYSTEM or name.startswith("systemd-"):
            message = f"'{name}' is a system account; reserved: {', '.join(sorted(SYSTEM))}, systemd-..."
            yield error("reserved_user", f"users.{name}", message, "choose another name, for example `alice`")


def check_uids(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse the same uid for two users."""
    owners: dict[int, str] = {}
    for name, user in spec.users.items():
        if user.uid in owners:
            free = next(uid for uid in range(2000, 60001) if uid not in {u.uid for u in spec.users.values()})
            message = f"{user.uid} is already the uid of user '{owners[user.uid]}'; every user needs a different uid"
            yield error("uid_taken", f"users.{name}.uid", message, f"write `uid: {free}`")
        owners.setdefault(user.uid, name)


def check_ssh_keys(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse lines that are not public SSH keys."""
    for name, user in spec.users.items():
        for index, line in enumerate(user.ssh_keys):
            if message := find_key_error(line):
                yield error("ssh_key", f"users.{name}.ssh_keys[{index}]", message, FIX)


def find_key_error(line: str) -> str | None:
    """Return what is wrong with a line of authorized_keys, or None; the message never repeats a private key."""
    if "PRIVATE KEY" in line:
        return "is a private key; allowed: a public key (and create a new pair: this one has been exposed in a file)"
    if "\n" in line.strip() or "\r" in line.strip():
        return "is more than one line; allowed: one public key on one line"
    kind, _, blob_and_comment = line.strip().partition(" ")
    if kind not in KEY_TYPES:
        return f"begins with '{kind[:40]}'; allowed: {', '.join(KEY_TYPES)}"
    return _find_blob_error(kind, blob_and_comment.strip().partition(" ")[0])


def _find_blob_error(kind: str, blob: str) -> str | None:
    if not blob:
        return f"has nothing after '{kind}'; allowed: type, key in base64, comment"
    try:
        raw = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return f"the key after '{kind}' is not base64"
    if raw[4 : 4 + len(kind)] != kind.encode() or int.from_bytes(raw[:4], "big") != len(kind):
        return f"the key after '{kind}' is truncated or of another type"
    return None
