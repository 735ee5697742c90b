"""Build an image on this machine, without traces of the machine; or check a machine that started from one."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bootstrap import bundle, restart
from bootstrap.bake import (
    CLEANUP_SCRIPT,
    CLEANUP_TIMEOUT_S,
    COMPILE_SCRIPT,
    COMPILE_TIMEOUT_S,
    build_image_probe,
    digest_contents,
    find_faults,
    plan_image,
)
from bootstrap.errors import BootstrapError
from bootstrap.execute import execute_steps
from bootstrap.facts.collect import collect_facts
from bootstrap.image_contents import RECORD, ImageContents, ImageRecord
from bootstrap.steps import registry
from bootstrap.transport.base import Transport, TransportError
from bootstrap.transport.local import LocalTransport
from cluster.inventory import InventoryModel
from cluster.plural import format_count
from infra.targets.aws.node import identity, parameters, ship_logs, signed
from infra.targets.aws.node.set_up import EXIT_REPORTED, EXIT_RESTARTING, ROOT, Reporter, restart_machine

_LIST_PACKAGES = "dpkg-query -W -f '${Package} ${Version}\\n'"
_TIMEOUT_S = 60.0


class ImageJob(InventoryModel):
    """What a machine that builds or checks an image is told."""

    contents: ImageContents
    region: str
    bucket: str
    cluster: str
    """Whose bucket and parameters the machine uses; nothing of it gets into the image."""
    name: str
    """Name under which the machine reports."""


def main(argv: Sequence[str] | None = None) -> int:
    """Build or check an image and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.targets.aws.node.bake", description=__doc__)
    parser.add_argument("--bundle", required=True, help="digest of the bundle that contains this program")
    parser.add_argument("--check", action="store_true", help="check that a machine from the image needs nothing")
    options = parser.parse_args(argv)
    job = ImageJob.model_validate_json((ROOT / bundle.IMAGE).read_text())
    reporter = Reporter(job.region, parameters.node(job.cluster, job.name), options.bundle)
    transport = LocalTransport()
    try:
        if options.check:
            check(transport, job.contents)
        elif reason := bake(transport, job, options.bundle, reporter):
            restart_machine(transport, reason, reporter)
            return EXIT_RESTARTING
    except (BootstrapError, TransportError) as error:
        print(f"muster: failed: {error}", file=sys.stderr, flush=True)
        reporter.report("failed", error.step if isinstance(error, BootstrapError) else "image", str(error))
        with suppress(OSError, RuntimeError):
            ship_logs.ship(job.region, job.bucket, job.name)
        return EXIT_REPORTED
    reporter.report("ready", "image", "")
    return 0


def bake(transport: Transport, job: ImageJob, bundle_digest: str, reporter: Reporter) -> str:
    """Install the contents and clean the machine; return why it must restart first."""
    others = [step for step in registry.BAKED if step not in registry.KERNEL]
    for stage in (registry.KERNEL, others):
        reporter.report("working", stage[0].name, f"{format_count(len(stage), 'step')} to go")
        facts = collect_facts(transport, job.name, build_image_probe(job.contents))
        execute_steps(transport, job.name, plan_image(facts, job.contents, stage), reporter)
        if reason := restart.read_request(transport):
            return reason
    reporter.report("working", "clean", "removing what belongs to this machine")
    packages = gzip.compress(json.dumps(list_packages(_run(transport, job.name, _LIST_PACKAGES))).encode())
    key = parameters.stored(job.name, identity.read_arn(job.region), parameters.PACKAGE_LIST)
    signed.store_bytes(job.region, job.bucket, key, packages, _TIMEOUT_S)
    contents = job.contents.model_copy(update={"package_store": ()})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = ImageRecord(contents=contents, digest=digest_contents(contents), bundle=bundle_digest, built=now)
    transport.put(RECORD, record.model_dump_json().encode())
    _run(transport, job.name, COMPILE_SCRIPT, COMPILE_TIMEOUT_S)
    _run(transport, job.name, CLEANUP_SCRIPT, CLEANUP_TIMEOUT_S)
    return ""


def check(transport: Transport, contents: ImageContents) -> None:
    """Raise BootstrapError if this machine, which started from the image, lacks something or is not clean."""
    facts = collect_facts(transport, parameters.BUILDER, build_image_probe(contents))
    record = ImageRecord.model_validate_json(Path(RECORD).read_text())

    def has_program(name: str) -> bool:
        return transport.run(f"command -v {name}", timeout=_TIMEOUT_S).code == 0

    if faults := find_faults(facts, contents, record, has_program):
        fix = "see the log of the machine that built it; a build is repeated with `muster image build`"
        raise BootstrapError(parameters.BUILDER, "check", "; ".join(faults), fix=fix)


def list_packages(text: str) -> dict[str, str]:
    """Return versions by package from the output of dpkg-query."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}  # noqa: PLR2004  # name and version


def _run(transport: Transport, name: str, script: str, timeout_s: float = _TIMEOUT_S) -> str:
    completed = transport.run(script, timeout=timeout_s)
    if completed.code:
        line = (completed.err.strip().splitlines() or [f"exit code {completed.code}"])[-1]
        raise BootstrapError(name, "clean", line, fix="build the image again")
    return completed.out


if __name__ == "__main__":
    sys.exit(main())
