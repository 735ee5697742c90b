"""Check of the key that signs the Lustre client: AWS's file still has the pinned one.

Machines refuse the client if it does not, after they have been launched and billed.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import sha1

from cluster.inventory import PackageRepository
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.preflight.public_files import UNREADABLE, download, needs_lustre_client
from infra.targets.aws.preflight.subject import Subject

_WHERE = "storage"
_BLOCK = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
# RFC 4880, sections 4.2 and 12.2.
_PUBLIC_KEY, _VERSION = 6, 4
_NEW_FORMAT = 0x40
_ONE_OCTET, _TWO_OCTETS, _FOUR_OCTETS = 192, 224, 255


def check_lustre_key(subject: Subject, fetch: Callable[[str], bytes] = download) -> Iterator[Issue]:
    """Report a key that machines would refuse, before there are machines."""
    if not needs_lustre_client(subject.spec):
        return
    try:
        content = fetch(LUSTRE_CLIENT.key_url)
    except UNREADABLE as failure:
        message = f"the key of the Lustre client could not be checked ({failure})"
        yield warning("lustre_key_unknown", _WHERE, message, "check the network of this machine; nodes check it, too")
    else:
        yield from judge_key(content, LUSTRE_CLIENT, exists=subject.exists)


def judge_key(content: bytes, repository: PackageRepository, *, exists: bool = False) -> Iterator[Issue]:
    """Yield an issue if the file of a repository's keys does not have the pinned one as a primary key.

    It is never an error if the cluster exists, because its machines have the client already.
    """
    make = warning if exists else error
    fingerprints, url, pinned = list_fingerprints(content), repository.key_url, repository.fingerprint
    fix = "name images that have the client with `aws.ami` and `aws.plain_ami`, or use a newer version of muster"
    if not fingerprints:
        message = f"{url} has no key that can be read; new machines need {pinned}"
        yield make("lustre_key", _WHERE, message, fix)
    elif pinned not in fingerprints:
        message = f"{url} has the key {', '.join(fingerprints)} instead of the pinned {pinned}: new machines refuse it"
        yield make("lustre_key", _WHERE, message, fix)


def list_fingerprints(content: bytes) -> list[str]:
    """Return the fingerprints of the primary keys in a file of OpenPGP; without those that cannot be read."""
    blocks = [_decode(block) for block in _BLOCK.findall(content)] or [content]
    return [
        # The fingerprint of a key of version 4 is defined as a SHA-1.
        sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
        for block in blocks
        for tag, body in _split_packets(block)
        if tag == _PUBLIC_KEY and body[:1] == bytes([_VERSION])
    ]


def _decode(block: bytes) -> bytes:
    """Return the content of an armored block, whose headers end with an empty line and whose last line is a sum."""
    lines = [line.strip() for line in block.splitlines()]
    start = lines.index(b"") + 1 if b"" in lines else 0
    try:
        return b64decode(b"".join(line for line in lines[start:] if not line.startswith(b"=")))
    except binascii.Error:
        return b""


def _split_packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the body of each packet, up to the first that is damaged or has no fixed length."""
    while len(data) > 1 and data[0] & 0x80:
        is_new = data[0] & _NEW_FORMAT
        tag = data[0] & 0x3F if is_new else (data[0] >> 2) & 0x0F
        length, start = _read_length(data) if is_new else _read_old_length(data)
        if length is None or len(data) < start + length:
            return
        yield tag, data[start : start + length]
        data = data[start + length :]


def _read_length(data: bytes) -> tuple[int | None, int]:
    """Return the length of a packet in the new format, and where its body starts."""
    first = data[1]
    if first < _ONE_OCTET:
        return first, 2
    if first < _TWO_OCTETS:
        return ((first - _ONE_OCTET) << 8) + int.from_bytes(data[2:3], "big") + _ONE_OCTET, 3
    return (int.from_bytes(data[2:6], "big"), 6) if first == _FOUR_OCTETS else (None, 0)


def _read_old_length(data: bytes) -> tuple[int | None, int]:
    """Return the length of a packet in the old format, and where its body starts."""
    octets = {0: 1, 1: 2, 2: 4}.get(data[0] & 3)
    return (int.from_bytes(data[1 : 1 + octets], "big"), 1 + octets) if octets else (None, 0)
