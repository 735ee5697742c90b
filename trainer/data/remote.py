"""Files of a remote folder: s3:// with boto3 or, for public buckets, plain HTTPS; and https:// or http:// folders."""

from __future__ import annotations

import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from trainer.config.check_sources import REMOTE_SCHEMES, explain_address
from trainer.config.errors import ConfigError, ConfigProblem

_TIMEOUT_S = 60.0
_BLOCK_BYTES = 1 << 20
_RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# By name, because botocore is optional. A role's credentials come from a service that may be busy or out of reach.
_TRANSIENT_S3_ERRORS = frozenset(
    {"ConnectionError", "HTTPClientError", "IncompleteReadError", "CredentialRetrievalError", "MetadataRetrievalError"}
)

Result = TypeVar("Result")


class TransientError(ConnectionError):
    """A failure that a retry may cure: no connection, a timeout, a busy server, an answer that broke off."""


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
    def close(self) -> None: ...


def is_remote(path: str) -> bool:
    """Return whether a path is the address of a remote folder."""
    return urlsplit(path).scheme in REMOTE_SCHEMES


class RemoteFolder:
    """A folder in a bucket or on a web server. Errors name the file and say what to do."""

    def __init__(self, url: str) -> None:
        if problem := explain_address(url):
            raise _error(problem.message, problem.fix)
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if not parts.netloc:
            raise _error(f"{url} names no bucket or server", "use s3://BUCKET/FOLDER")
        self._client: Any = retry(lambda: _make_s3_client(url)) if parts.scheme == "s3" else None
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._is_s3 = parts.scheme == "s3"

    def read_blocks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """Yield a file from `offset` on; raise TransientError if the connection fails."""
        stream = self._open(name, offset)
        try:
            while block := self._guard(name, lambda: stream.read(_BLOCK_BYTES)):
                yield block
        finally:
            stream.close()

    def read(self, name: str) -> bytes:
        """Return a small file, with retries."""

        def read_once() -> bytes:
            stream = self._open(name, 0)
            try:
                return self._guard(name, stream.read)
            finally:
                stream.close()

        return retry(read_once)

    def _open(self, name: str, offset: int) -> _Stream:
        if self._client is not None:
            return self._open_object(name, offset)
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        request = urllib.request.Request(self._locate(name), headers=headers)  # noqa: S310 - the scheme is checked
        try:
            answer = self._guard(name, lambda: urllib.request.urlopen(request, timeout=_TIMEOUT_S))  # noqa: S310
        except urllib.error.HTTPError as error:
            raise self._explain(name, error.code, error.reason) from error
        except http.client.InvalidURL as error:
            raise _error(f"{self.url}/{name} is not a valid address ({error})", "check the address") from error
        if offset and answer.status != HTTPStatus.PARTIAL_CONTENT:
            self._guard(name, lambda: _skip(answer, offset))  # the server ignores ranges
        return answer

    def _open_object(self, name: str, offset: int) -> _Stream:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional

        key = f"{self._prefix}/{name}" if self._prefix else name
        client, extra = self._client, {"Range": f"bytes={offset}-"} if offset else {}
        try:
            answer = self._guard(name, lambda: client.get_object(Bucket=self._bucket, Key=key, **extra))
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise self._explain(name, status, error.response["Error"].get("Code", "")) from error
        except BotoCoreError as error:  # an invalid bucket name, or no credentials any more
            raise _error(
                f"{self.url}/{name} cannot be read ({error})", "check the address and the credentials"
            ) from error
        stream: _Stream = answer["Body"]
        return stream

    def _locate(self, name: str) -> str:
        """Return the address of a file for plain HTTP; AWS_ENDPOINT_URL names another object store than Amazon's."""
        if not self._is_s3:
            return f"{self.url}/{quote(name)}"
        endpoint = (os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "").rstrip("/")
        root = f"{endpoint}/{self._bucket}" if endpoint else f"https://{self._bucket}.s3.amazonaws.com"
        return "/".join([root, *([quote(self._prefix)] if self._prefix else []), quote(name)])

    def _guard(self, name: str, action: Callable[[], Result]) -> Result:
        return _guard(f"{self.url}/{name}", action)

    def _explain(self, name: str, status: int, reason: str) -> Exception:
        """Return the error for an answer: TransientError if a retry may help, else one that says what to do."""
        where = f"{self.url}/{name}"
        if status in _TRANSIENT:
            return TransientError(f"{where}: {status} {reason}")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            message, fix = f"there is no {where} ({reason})", "check the address; prepare writes index.json last"
        elif status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            message, fix = f"{where} is shorter than index.json says", "upload the folder again"
        elif status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
            message, fix = f"{where} must not be read ({status} {reason})", self._suggest_access()
        else:
            message, fix = f"{where} cannot be read ({status} {reason})", "check the address"
        return _error(message, fix)

    def _suggest_access(self) -> str:
        if not self._is_s3:
            return "use an address that needs no login"
        if self._client is not None:
            return f"allow s3:GetObject on {self.url}/* for these credentials; S3 answers 403 for missing files too"
        if not _has_boto3():
            return "install boto3 (muster-env add boto3), without which only public buckets can be read"
        return "provide AWS credentials: a role of the machine, AWS_PROFILE, or AWS_ACCESS_KEY_ID"


def retry(
    action: Callable[[], Result],
    sleep: Callable[[float], None] = time.sleep,
    is_transient: Callable[[Exception], bool] = lambda error: isinstance(error, TransientError),
) -> Result:
    """Repeat an action until it succeeds or has failed transiently seven times; the last error is then raised."""
    for number, delay_s in enumerate(_RETRY_DELAYS_S):
        try:
            return action()
        except Exception as error:
            if not is_transient(error):
                raise
            if number == 0:  # later ones would only repeat it
                print(f"{error}; trying again for {sum(_RETRY_DELAYS_S):.0f} s", file=sys.stderr, flush=True)
            sleep(delay_s)
    return action()


def _guard(where: str, action: Callable[[], Result]) -> Result:
    """Run one network operation on a file or folder; turn failures of the connection into TransientError."""
    try:
        return action()
    except (urllib.error.HTTPError, http.client.InvalidURL):
        raise
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise TransientError(f"{where}: {error}") from error
    except Exception as error:
        if _TRANSIENT_S3_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
            raise TransientError(f"{where}: {error}") from error
        raise


def _skip(stream: _Stream, count: int) -> None:
    """Read up to the byte at which the caller wants to continue."""
    while count:
        block = stream.read(min(count, _BLOCK_BYTES))
        if not block:
            raise TransientError("the answer broke off")
        count -= len(block)


def _has_boto3() -> bool:
    try:
        import boto3  # noqa: F401, PLC0415 - optional
    except ImportError:
        return False
    return True


def _make_s3_client(url: str) -> Any:
    """Return a client, or None without boto3 or credentials: then only public buckets can be read."""
    if not _has_boto3():
        return None
    import boto3  # noqa: PLC0415 - optional
    from botocore.config import Config  # noqa: PLC0415 - optional
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - optional

    try:
        session = boto3.session.Session()
        if _guard(url, session.get_credentials) is None:
            return None
    except BotoCoreError as error:  # such as an AWS_PROFILE that does not exist
        raise _error(f"{url} cannot be read ({error})", "check the AWS credentials") from error
    # The retries are ours, so that they are the same for all kinds of folders.
    settings = Config(retries={"total_max_attempts": 1}, connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S)
    return session.client("s3", config=settings)


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("data.path", message, fix)])
