"""Pre-flight of the key that signs the Lustre client: AWS's file against the pinned fingerprint."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster.inventory import PackageRepository
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.preflight import lustre_key
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.lustre_key import check_lustre_key, judge_key, list_fingerprints
from infra.targets.aws.preflight.public_files import download
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.preflight.test_lustre_clients import LUSTRE
from tests.infra.targets.aws.specs import spec

# Made with `gpg --gen-key`; `gpg --show-keys` printed the fingerprints of the key and of its subkey.
FINGERPRINT, SUBKEY = "9E0979B61A191ED25A2B02F83FC69B92CB820F6D", "940D0298D21B7B287783DE041B5B02DD05E8302D"
LINES = b"""\
mDMEav05fxYJKwYBBAHaRw8BAQdAn6FII+Bzj+CRkXnYJyP0HzeEpgeO/B3iJ6Aq
UAZZYMa0EEEgdGVzdCBvZiBtdXN0ZXKIkAQTFggAOBYhBJ4JebYaGR7SWisC+D/G
m5LLgg9tBQJq/Tl/AhsjBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAAAoJED/Gm5LL
gg9tc64BAI5wq/iZ1XqhOk2ri9zZd8uWI7dntKRRdOCLJvu1ypBiAP9B2q4eMAwe
l/qpZdcUU1YYiS8QJoL+viUKd4I1p6YLDrg4BGr9OX8SCisGAQQBl1UBBQEBB0Bq
/pZnZ3hVFY5eDCxhw7XmyDn9npnEVmH8Om0WwJk5AQMBCAeIeAQYFggAIBYhBJ4J
ebYaGR7SWisC+D/Gm5LLgg9tBQJq/Tl/AhsMAAoJED/Gm5LLgg9tG+gA/2JAGgQk
/+z7ntaOqLSCNb8DJysOot/4uGwugwR8pAipAQDkNWcvG9wQc/DWHl1kz2h4fhmG
nMQ1TgS0Aa1N1o6fBQ==
"""
BINARY = b64decode(LINES)
ARMORED = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n" + LINES + b"=a1Lg\n-----END PGP PUBLIC KEY BLOCK-----\n"
BODY = BINARY[2:53]
"""The packet with the primary key, without its header of two octets."""
FIX = "name images that have the client with `aws.ami` and `aws.plain_ami`, or use a newer version of muster"


def pin(fingerprint: str) -> PackageRepository:
    return PackageRepository(url="https://x", key_url="https://x/key.asc", fingerprint=fingerprint)


@pytest.mark.parametrize(
    "content",
    [
        ARMORED,
        ARMORED.replace(b"\n", b"\r\n"),
        ARMORED.replace(b"BLOCK-----\n\n", b"BLOCK-----\nVersion: GnuPG v2\nComment: of a test\n\n"),
        BINARY,
        b"\x99" + len(BODY).to_bytes(2, "big") + BODY,
        b"\x9a" + len(BODY).to_bytes(4, "big") + BODY,
        b"\xc6" + bytes([len(BODY)]) + BODY,
        b"\xc6\xff" + len(BODY).to_bytes(4, "big") + BODY,
        # A packet of 300 octets before it, whose length takes two.
        b"\xcd\xc0\x6c" + b"u" * 300 + BINARY,
    ],
    ids=["armored", "crlf", "headers", "binary", "old-2", "old-4", "new-1", "new-4", "new-2"],
)
def test_the_fingerprint_is_that_of_gpg(content: bytes) -> None:
    assert list_fingerprints(content) == [FINGERPRINT]


def test_all_primary_keys_of_a_file_are_listed() -> None:
    assert list_fingerprints(ARMORED + b"\n" + ARMORED) == [FINGERPRINT, FINGERPRINT]
    assert SUBKEY not in list_fingerprints(ARMORED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x99",
        b"<html>Access Denied</html>",
        BINARY[:40],
        ARMORED.replace(b"mDME", b"mDM"),
        b"\xc6\xe0" + BODY,
        b"\x9b" + BODY,
        b"\x99" + len(BODY).to_bytes(2, "big") + b"\x05" + BODY[1:],
    ],
    ids=["empty", "header", "html", "cut", "base64", "partial", "indeterminate", "version-5"],
)
def test_a_file_without_a_readable_key_is_an_error(content: bytes) -> None:
    assert list_fingerprints(content) == []
    assert format_issues(judge_key(content, pin(FINGERPRINT))) == [
        f"error lustre_key storage: https://x/key.asc has no key that can be read; new machines need {FINGERPRINT}; "
        f"fix: {FIX}"
    ]


def test_another_key_is_an_error_for_a_new_cluster_only() -> None:
    assert list(judge_key(ARMORED, pin(FINGERPRINT))) == []
    # A key of somebody else that has the pinned one as its subkey does not count: machines refuse it, too.
    assert format_issues(judge_key(ARMORED, pin(SUBKEY))) == [
        f"error lustre_key storage: https://x/key.asc has the key {FINGERPRINT} instead of the pinned {SUBKEY}: new "
        f"machines refuse it; fix: {FIX}"
    ]
    assert [issue.level for issue in judge_key(ARMORED, pin(SUBKEY), exists=True)] == ["warning"]


@pytest.fixture
def key_server() -> Iterator[Callable[[bytes], str]]:
    """Yield a function that serves a file over HTTP on loopback and returns its address."""
    content = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # named by the library
            self.send_response(HTTPStatus.OK if content[0] else HTTPStatus.FORBIDDEN)
            self.send_header("Content-Length", str(len(content[0])))
            self.end_headers()
            self.wfile.write(content[0])

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def serve(served: bytes) -> str:
            content[0] = served
            return f"http://127.0.0.1:{server.server_port}/key.asc"

        yield serve
        server.shutdown()


def check(canned_aws: CannedAws, url: str, **more: object) -> list[str]:
    """Check the file at an address of this machine in place of AWS's."""
    identity = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
    subject = Subject(spec(**more), canned_aws.account, identity)
    return format_issues(check_lustre_key(subject, lambda _: download(url)))


def test_the_file_is_downloaded_and_compared(
    canned_aws: CannedAws, key_server: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (issue,) = check(canned_aws, key_server(ARMORED), storage=LUSTRE)
    assert issue.startswith(f"error lustre_key storage: {LUSTRE_CLIENT.key_url} has the key {FINGERPRINT} instead of")
    assert LUSTRE_CLIENT.fingerprint in issue
    monkeypatch.setattr(lustre_key, "LUSTRE_CLIENT", pin(FINGERPRINT))
    assert check(canned_aws, key_server(ARMORED), storage=LUSTRE) == []
    assert check(canned_aws, key_server(b""), storage=LUSTRE) == [
        "warning lustre_key_unknown storage: the key of the Lustre client could not be checked (HTTP Error 403: "
        "Forbidden); fix: check the network of this machine; nodes check it, too"
    ]


def test_only_clusters_that_install_the_client_are_checked(
    canned_aws: CannedAws,
) -> None:
    def refuse(url: str) -> bytes:
        raise AssertionError(f"{url} was downloaded")

    named = {"region": "us-east-1", "ami": "ami-0123456789abcdef0", "plain_ami": "ami-0123456789abcdef0"}
    identity = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
    for unaffected in (spec(), spec(storage=LUSTRE, aws=named)):
        assert list(check_lustre_key(Subject(unaffected, canned_aws.account, identity), refuse)) == []


def test_a_stand_in_of_aws_has_no_key(canned_aws: CannedAws) -> None:
    (issue,) = check(canned_aws, LUSTRE_CLIENT.key_url, storage=LUSTRE)
    assert issue.startswith(
        "warning lustre_key_unknown storage: the key of the Lustre client could not be checked (AWS is"
    )
