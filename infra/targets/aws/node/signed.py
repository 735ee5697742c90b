"""Signed requests to AWS (Signature Version 4), only those that a node needs: S3 objects and SSM calls, with retries.

Plain Python 3.10 without packages: user data contains this file and runs it before anything is installed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from infra.targets.aws.node import imds

T = TypeVar("T")
TIMEOUT_S = 60.0
# A role's credentials, a new object and a new policy can each take a minute until they are visible everywhere.
RETRY_FOR_S = 300.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 20.0
BAD_REQUEST = 400
# Parts of error codes. Access is denied until a new role, policy or key is known everywhere.
TRANSIENT = ("Throttl", "TooMany", "AccessDenied", "UnrecognizedClient")
CHUNK = 1 << 20


class Call(NamedTuple):
    """A request before it is signed; header names are in lower case."""

    method: str
    service: str
    region: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed


def fetch(region: str, bucket: str, key: str, path: str, retry_for_s: float = RETRY_FOR_S) -> str:
    """Download an object to a file and return its SHA-256."""

    def download() -> str:
        return save(request(Call("GET", "s3", region, f"/{bucket}/{key}")), path)

    return retry(download, f"s3://{bucket}/{key}", retry_for_s)


def save(answer: Any, path: str) -> str:
    """Write an open answer to a file and return its SHA-256."""
    digest = hashlib.sha256()
    with answer, open(path, "wb") as file:
        while chunk := answer.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def store(region: str, bucket: str, key: str, path: str) -> None:
    """Upload a file as an object."""
    with open(path, "rb") as file:
        store_bytes(region, bucket, key, file.read())


def store_bytes(region: str, bucket: str, key: str, data: bytes, retry_for_s: float = RETRY_FOR_S) -> None:
    """Upload bytes as an object."""

    def upload() -> None:
        # Without a content type, urllib would send that of a form.
        headers = {"content-type": "application/octet-stream"}
        request(Call("PUT", "s3", region, f"/{bucket}/{key}", data, headers)).close()

    retry(upload, f"s3://{bucket}/{key}", retry_for_s)


def ssm(region: str, action: str, **arguments: Any) -> dict[str, Any]:
    """Call Systems Manager and return its answer."""
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"AmazonSSM.{action}"}
    call = Call("POST", "ssm", region, "/", json.dumps(arguments).encode(), headers)

    def send() -> dict[str, Any]:
        with request(call) as answer:
            values: dict[str, Any] = json.loads(answer.read() or b"{}")
        return values

    return retry(send, action)


def retry(work: Callable[[], T], what: str, retry_for_s: float = RETRY_FOR_S) -> T:
    """Call `work` again after growing pauses, unless its error is permanent or the time is up."""
    deadline, pause = time.monotonic() + retry_for_s, FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:  # includes what urllib raises
            text = _describe(error)
            if _is_permanent(error, text) or time.monotonic() + pause > deadline:
                raise RuntimeError(f"{what}: {text}") from None
        # Many machines start at the same moment; they must not retry at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        pause = min(pause * 2, LONGEST_PAUSE_S)


def request(call: Call) -> Any:
    """Sign and send a request; return the open answer."""
    base = os.environ.get("AWS_ENDPOINT_URL") or f"https://{call.service}.{call.region}.{_domain(call.region)}"
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = sign(call, urllib.parse.urlsplit(base).netloc, now, imds.read_credentials())
    url = base.rstrip("/") + urllib.parse.quote(call.path)
    signed = urllib.request.Request(url, call.body or None, headers, method=call.method)  # noqa: S310
    return urllib.request.urlopen(signed, timeout=TIMEOUT_S)  # noqa: S310


def sign(call: Call, host: str, now: str, credentials: imds.Credentials) -> dict[str, str]:
    """Return the headers of a request, with its signature."""
    digest = hashlib.sha256(call.body).hexdigest()
    headers = {**call.headers, "host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([call.method, urllib.parse.quote(call.path), "", lines, names, digest])
    scope = f"{now[:8]}/{call.region}/{call.service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    proof = f"SignedHeaders={names}, Signature={hmac.digest(key, text.encode(), 'sha256').hex()}"
    return headers | {"authorization": f"AWS4-HMAC-SHA256 Credential={credentials.key}/{scope}, {proof}"}


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _describe(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read().decode(errors='replace').strip()[:300] or error.reason}"
    return str(getattr(error, "reason", error))


def _is_permanent(error: OSError, text: str) -> bool:
    """Return whether AWS rejects the request itself: code 400, unless it is used for one of TRANSIENT."""
    rejected = isinstance(error, urllib.error.HTTPError) and error.code == BAD_REQUEST
    return rejected and not any(word in text for word in TRANSIENT)
