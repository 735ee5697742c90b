"""A `pulumi-resource-aws` plugin without AWS's provider: only the resource types that the program uses, on boto3."""

from __future__ import annotations

from pathlib import Path

PLUGIN = Path(__file__).parent
"""Folder of the program that the Pulumi engine starts; to be put in front of PATH."""
