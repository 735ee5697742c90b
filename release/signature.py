"""Signatures of releases with SSH keys: `ssh-keygen -Y`, which every machine with OpenSSH 8.1 has."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

NAMESPACE = "muster-release"
SIGNER = "release"
"""The name under which release/allowed_signers lists the keys of maintainers."""
ALLOWED = Path(__file__).with_name("allowed_signers")


class SignatureError(Exception):
    """A file could not be signed, or its signature is not valid; the message names the file and the fix."""


def sign(file: Path, key: Path, allowed: Path = ALLOWED) -> Path:
    """Sign a file with a private key, or the public half of a key in ssh-agent, and return the signature's path.

    Raise SignatureError if users could not verify it, because `allowed` does not list the key.
    """
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    done = _ssh_keygen("-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(file))
    if done.returncode:
        raise SignatureError(f"{file.name} cannot be signed with {key}: {done.stderr.strip()}")
    try:
        verify(file, allowed)
    except SignatureError:
        signature.unlink()
        public = key.read_text() if key.suffix == ".pub" else _ssh_keygen("-y", "-f", str(key)).stdout
        line = f'{SIGNER} namespaces="{NAMESPACE}" {" ".join(public.split()[:2])}'
        raise SignatureError(f"{allowed} does not list the key {key}: add and commit this line\n  {line}") from None
    return signature


def require_listed(key: Path, allowed: Path = ALLOWED) -> None:
    """Raise SignatureError unless `key` can sign and `allowed` lists it; a trial signature shows both."""
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch) / "trial"
        trial.touch()
        sign(trial, key, allowed)


def verify(file: Path, allowed: Path = ALLOWED) -> None:
    """Raise SignatureError unless a file has a signature by one of the allowed keys next to it."""
    signature = file.with_name(f"{file.name}.sig")
    if not signature.is_file():
        raise SignatureError(f"{signature} is missing: {file.name} is not signed")
    identity = ("-I", SIGNER, "-n", NAMESPACE)
    with file.open("rb") as content:
        done = _ssh_keygen("-Y", "verify", "-f", str(allowed), *identity, "-s", str(signature), stdin=content.fileno())
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1]
        raise SignatureError(f"{file.name} is not signed by a key in {allowed}: {reason}")


def _ssh_keygen(*arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ssh-keygen", *arguments], stdin=stdin, capture_output=True, text=True, check=False)
