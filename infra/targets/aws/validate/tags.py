"""Rules about tags on AWS: what one of the services that get them refuses would end `up` half-way."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from cluster.spec.written import path

# Machines read their own tags. docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
NOT_IN_METADATA = "/"
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html
VALUE = re.compile(r"[\w +=.:/@-]*")
# Beside the cluster's two. docs.aws.amazon.com/AmazonS3/latest/API/API_PutObjectTagging.html
MOST = 8


def keys(spec: ClusterSpec) -> Iterator[Issue]:
    for key in spec.tags:
        if NOT_IN_METADATA in key:
            message = f"has a '{NOT_IN_METADATA}', which no machine that reads its own tags can have"
            yield error("tag_metadata", path(("tags", key)), message, f"write `{key.replace(NOT_IN_METADATA, '.')}`")


def values(spec: ClusterSpec) -> Iterator[Issue]:
    for key, value in spec.tags.items():
        if not VALUE.fullmatch(value):
            message = (
                f"'{value}' has a character that IAM refuses; allowed: letters, digits, spaces and _ . : / = + - @"
            )
            yield error("tag_characters", path(("tags", key)), message, "leave the others out")


def count(spec: ClusterSpec) -> Iterator[Issue]:
    if len(spec.tags) > MOST:
        message = f"{len(spec.tags)} tags; allowed: {MOST}, for an object of S3 has ten and two are the cluster's"
        yield error("tag_count", "tags", message, f"keep {MOST} of them")
