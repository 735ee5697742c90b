"""Signed requests to AWS (Signature Version 4), as few as a node needs: objects of S3, calls of SSM; patient ones.

Plain Python 3.10 without packages: user data carries this file and runs it before anything is installed."""

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
# A role's credentials, an object just written, a policy just attached: each may take a minute to be seen everywhere.
PATIENCE_S = 300.0
PAUSE_S = 0.5
LONGEST_PAUSE_S = 20.0
BAD_REQUEST = 400
CHUNK = 1 << 20


class Ask(NamedTuple):
    """A request before it is signed; names of headers in small letters."""

    method: str
    service: str
    region: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed


def fetch(region: str, bucket: str, key: str, path: str, patience_s: float = PATIENCE_S) -> str:
    """Writes an object to a file; returns its SHA-256."""

    def once() -> str:
        digest = hashlib.sha256()
        with request(Ask("GET", "s3", region, f"/{bucket}/{key}")) as answer, open(path, "wb") as file:
            while chunk := answer.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    return patiently(once, f"s3://{bucket}/{key}", patience_s)


def store(region: str, bucket: str, key: str, path: str) -> None:
    with open(path, "rb") as file:
        data = file.read()

    def once() -> None:
        # Else urllib says that it is a form.
        kind = {"content-type": "application/octet-stream"}
        request(Ask("PUT", "s3", region, f"/{bucket}/{key}", data, kind)).close()

    patiently(once, f"s3://{bucket}/{key}")


def ssm(region: str, action: str, **arguments: Any) -> dict[str, Any]:
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"AmazonSSM.{action}"}
    ask = Ask("POST", "ssm", region, "/", json.dumps(arguments).encode(), headers)

    def once() -> dict[str, Any]:
        with request(ask) as answer:
            found: dict[str, Any] = json.loads(answer.read() or b"{}")
        return found

    return patiently(once, action)


def patiently(work: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Again after a growing pause, as long as it may still come right."""
    deadline, pause = time.monotonic() + patience_s, PAUSE_S
    while True:
        try:
            return work()
        except OSError as problem:  # includes what urllib raises
            said = _words(problem)
            if _hopeless(problem, said) or time.monotonic() + pause > deadline:
                raise RuntimeError(f"{what}: {said}") from None
        # Many machines start at the same moment: they must not come back at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        pause = min(pause * 2, LONGEST_PAUSE_S)


def request(ask: Ask) -> Any:
    base = os.environ.get("AWS_ENDPOINT_URL") or f"https://{ask.service}.{ask.region}.{_domain(ask.region)}"
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = sign(ask, urllib.parse.urlsplit(base).netloc, now, imds.credentials())
    url = base.rstrip("/") + urllib.parse.quote(ask.path)
    ready = urllib.request.Request(url, ask.body or None, headers, method=ask.method)  # noqa: S310
    return urllib.request.urlopen(ready, timeout=TIMEOUT_S)  # noqa: S310


def sign(ask: Ask, host: str, now: str, who: imds.Credentials) -> dict[str, str]:
    """The headers of the request with its signature among them."""
    digest = hashlib.sha256(ask.body).hexdigest()
    headers = {**ask.headers, "host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    if who.token:
        headers["x-amz-security-token"] = who.token
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([ask.method, urllib.parse.quote(ask.path), "", listed, names, digest])
    scope = f"{now[:8]}/{ask.region}/{ask.service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{who.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    proof = f"SignedHeaders={names}, Signature={hmac.digest(key, text.encode(), 'sha256').hex()}"
    return headers | {"authorization": f"AWS4-HMAC-SHA256 Credential={who.key}/{scope}, {proof}"}


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _words(problem: OSError) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return f"{problem.code} {problem.read().decode(errors='replace').strip()[:300] or problem.reason}"
    return str(getattr(problem, "reason", problem))


def _hopeless(problem: OSError, said: str) -> bool:
    """AWS refuses what is malformed with 400; so it does what comes too fast, and that is no reason to give up."""
    refused = isinstance(problem, urllib.error.HTTPError) and problem.code == BAD_REQUEST
    return refused and "Throttl" not in said and "TooMany" not in said
