"""Rules about tags on AWS: a tag that a service rejects would stop `up` halfway."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from cluster.spec.written import path

# Instances read their own tags. docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
NOT_IN_METADATA = "/"
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html
VALUE = re.compile(r"[\w +=.:/@-]*")
# muster adds two more. docs.aws.amazon.com/AmazonS3/latest/API/API_PutObjectTagging.html
MAX_TAGS = 8


def check_keys(spec: ClusterSpec) -> Iterator[Issue]:
    """Report tag keys that instance metadata does not allow."""
    for key in spec.tags:
        if NOT_IN_METADATA in key:
            message = f"has a '{NOT_IN_METADATA}', which instance metadata does not allow in a tag key"
            yield error("tag_metadata", path(("tags", key)), message, f"write `{key.replace(NOT_IN_METADATA, '.')}`")


def check_values(spec: ClusterSpec) -> Iterator[Issue]:
    """Report tag values that IAM refuses."""
    for key, value in spec.tags.items():
        if not VALUE.fullmatch(value):
            message = (
                f"'{value}' has a character that IAM refuses; allowed: letters, digits, spaces and _ . : / = + - @"
            )
            yield error("tag_characters", path(("tags", key)), message, "remove the others")


def check_count(spec: ClusterSpec) -> Iterator[Issue]:
    """Report more tags than an S3 object can have."""
    if len(spec.tags) > MAX_TAGS:
        message = (
            f"{len(spec.tags)} tags; allowed: {MAX_TAGS}, because an S3 object has at most ten and muster adds two"
        )
        yield error("tag_count", "tags", message, f"keep {MAX_TAGS} of them")
