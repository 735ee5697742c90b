"""The IAM actions that a call of AWS requires, for calls as a rehearsal of errors lists them."""

from __future__ import annotations

import re
from functools import cache

from botocore.session import Session

# Prefixes of actions whose services have another name in signatures.
_PREFIXES = {"tagging": "tag"}
_CLIENTS = {"elasticfilesystem": "efs"}
# Actions that are not called like their calls. https://docs.aws.amazon.com/service-authorization/latest/reference/
_ACTIONS = {
    "budgets CreateBudget": ("budgets:ModifyBudget",),
    "budgets DeleteBudget": ("budgets:ModifyBudget",),
    "budgets DescribeBudget": ("budgets:ViewBudget",),
    # AWS requires no permission for it.
    "sts GetCallerIdentity": (),
    "s3 DELETE /bucket": ("s3:DeleteBucket",),
    "s3 DELETE /bucket/object": ("s3:DeleteObject",),
    "s3 DELETE /bucket/object?versionId": ("s3:DeleteObjectVersion",),
    "s3 DELETE /bucket?encryption": ("s3:PutEncryptionConfiguration",),
    "s3 DELETE /bucket?lifecycle": ("s3:PutLifecycleConfiguration",),
    "s3 DELETE /bucket?policy": ("s3:DeleteBucketPolicy",),
    "s3 DELETE /bucket?publicAccessBlock": ("s3:PutBucketPublicAccessBlock",),
    "s3 GET /bucket/object": ("s3:GetObject",),
    "s3 GET /bucket?list-type": ("s3:ListBucket",),
    "s3 GET /bucket?tagging": ("s3:GetBucketTagging",),
    "s3 GET /bucket?versions": ("s3:ListBucketVersions",),
    "s3 HEAD /bucket": ("s3:ListBucket",),
    "s3 HEAD /bucket/object": ("s3:GetObject",),
    "s3 POST /bucket?delete": ("s3:DeleteObject", "s3:DeleteObjectVersion"),
    "s3 PUT /bucket": ("s3:CreateBucket",),
    "s3 PUT /bucket/object": ("s3:PutObject",),
    "s3 PUT /bucket?encryption": ("s3:PutEncryptionConfiguration",),
    "s3 PUT /bucket?lifecycle": ("s3:PutLifecycleConfiguration",),
    "s3 PUT /bucket?policy": ("s3:PutBucketPolicy",),
    "s3 PUT /bucket?publicAccessBlock": ("s3:PutBucketPublicAccessBlock",),
    "s3 PUT /bucket?tagging": ("s3:PutBucketTagging",),
    "s3 PUT /bucket?versioning": ("s3:PutBucketVersioning",),
}


def list_actions(site: str) -> tuple[str, ...]:
    """Return the IAM actions of a kind of call; raise KeyError for a call of S3 that is not in the table."""
    if site in _ACTIONS or site.startswith("s3 "):
        return _ACTIONS[site]
    service, action = site.split(" ", 1)
    method, _, path = action.partition(" ")
    name = _find_operation(service, method, path.partition("?")[0]) if path else action
    return (f"{_PREFIXES.get(service, service)}:{name}",)


def _find_operation(service: str, method: str, path: str) -> str:
    """Return the operation of a service with this method and path, in which ids are asterisks."""
    return next(
        name for name, (own, pattern) in _read_paths(service).items() if own == method and pattern.fullmatch(path)
    )


@cache
def _read_paths(service: str) -> dict[str, tuple[str, re.Pattern[str]]]:
    model = Session().get_service_model(_CLIENTS.get(service, service))
    requests = {name: model.operation_model(name).http for name in model.operation_names}
    paths = {name: http["requestUri"].partition("?")[0].rstrip("/") for name, http in requests.items()}
    return {
        name: (http["method"], re.compile(re.sub(r"\{[^}]*\}", "[^/]+", paths[name])))
        for name, http in requests.items()
    }
