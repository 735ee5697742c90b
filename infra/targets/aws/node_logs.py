"""Logs that machines stored in the cluster's bucket."""

from __future__ import annotations

import gzip
from functools import partial
from typing import Any

from infra.targets.aws import names
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import translate_errors
from infra.targets.aws.node import parameters
from infra.targets.mixins import NodeLog
from infra.targets.target import Deployment


def list_node_logs(deployment: Deployment, node: str) -> list[NodeLog]:
    """Return the logs of the machines that were a node, the latest first."""
    region, prefix = deployment.region, parameters.logs(node)
    with translate_errors(f"the logs of {node}", region):
        account = deployment.account or create_client("sts", region).get_caller_identity()["Account"]
        bucket, s3 = names.bucket(deployment.cluster, account, region), create_client("s3", region)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        objects = [item for page in pages for item in page.get("Contents", [])]
    logs = [item for item in objects if parameters.read_machine(node, item["Key"])]
    return [
        NodeLog(
            machine=parameters.read_machine(node, item["Key"]),
            stored=item["LastModified"],
            read=partial(_read, s3, deployment, bucket, item["Key"]),
        )
        for item in sorted(logs, key=lambda item: item["LastModified"], reverse=True)
    ]


def _read(s3: Any, deployment: Deployment, bucket: str, key: str) -> str:
    with translate_errors(f"s3://{bucket}/{key}", deployment.region):
        return gzip.decompress(s3.get_object(Bucket=bucket, Key=key)["Body"].read()).decode(errors="replace")
