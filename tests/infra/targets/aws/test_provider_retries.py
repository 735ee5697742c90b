"""Retries of AWS's provider for Terraform, whose code Pulumi's AWS plugin runs: they end at the number that is set.

terraform providers mirror FOLDER    # where a program requires hashicorp/aws
MUSTER_TERRAFORM_PROVIDERS=FOLDER .venv/bin/python -m pytest tests/infra/targets/aws/test_provider_retries.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from infra.targets.aws.build.component import MAX_RETRIES
from tests.moto_server import ENVIRONMENT, REGION, Moto

# Filled by `terraform providers mirror`; tests reach no registry.
VARIABLE = "MUSTER_TERRAFORM_PROVIDERS"
# 8 attempts took about 200 s; their pauses are random, and double.
ENDS_WITHIN_S = 300.0
PROGRAM = f"""
terraform {{
  required_providers {{
    aws = {{ source = "hashicorp/aws" }}
  }}
}}
provider "aws" {{
  region                      = "{REGION}"
  max_retries                 = {MAX_RETRIES}
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true
  skip_requesting_account_id  = true
}}
resource "aws_vpc" "one" {{
  cidr_block = "10.0.0.0/16"
}}
"""


@pytest.mark.nightly
@pytest.mark.fault(25)
@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no mirror with the provider hashicorp/aws")
@pytest.mark.parametrize("times", [3, 1000])
def test_the_provider_repeats_a_throttled_call_as_often_as_its_setting_says(
    aws: Moto, tmp_path: Path, times: int
) -> None:
    (tmp_path / "main.tf").write_text(PROGRAM)
    mirror = f'provider_installation {{\n  filesystem_mirror {{\n    path = "{os.environ[VARIABLE]}"\n  }}\n}}\n'
    (tmp_path / "terraformrc").write_text(mirror)
    settings = {"AWS_ENDPOINT_URL": aws.url, "TF_CLI_CONFIG_FILE": str(tmp_path / "terraformrc"), "NO_PROXY": "*"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = ["terraform", *arguments, "-no-color", "-input=false"]
        environment = {**os.environ, **ENVIRONMENT, **settings}
        return subprocess.run(line, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)

    initialized = run("init")
    assert initialized.returncode == 0, initialized.stderr
    aws.fail("CreateVpc", "RequestLimitExceeded", times=times)
    began = time.monotonic()
    applied = run("apply", "-auto-approve")
    took_s = time.monotonic() - began
    attempts = len(aws.of("CreateVpc"))
    assert took_s < ENDS_WITHIN_S
    if times < MAX_RETRIES:
        assert (applied.returncode, attempts) == (0, times + 1), applied.stderr
        return
    assert applied.returncode != 0
    # The first attempt counts.
    assert attempts == MAX_RETRIES
    assert f"exceeded maximum number of attempts, {MAX_RETRIES}, " in applied.stderr
    assert "RequestLimitExceeded" in applied.stderr
