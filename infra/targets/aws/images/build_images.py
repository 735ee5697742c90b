"""Build the images of a stack: bake each on a machine of its own, test it by booting it, and record what is in it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.bake import digest_contents
from bootstrap.bundle import IMAGE, Bundle, pack_node
from bootstrap.wheels import fetch_wheels
from cluster.catalog.interpreter import PYTHON
from cluster.spec import ClusterSpec
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.aws import names as aws_names
from infra.targets.aws.build.bundle import ARCHITECTURES, NODE_FOLDERS
from infra.targets.aws.cluster_end import describe_time_left, is_near
from infra.targets.aws.images import baked_images
from infra.targets.aws.images.baked_images import Record
from infra.targets.aws.images.builder_machine import BuilderMachine, BuildSite, end_earlier
from infra.targets.aws.images.planned_images import PlannedImage, plan_images
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.leftovers.kind import AccountRegion, read_tags
from infra.targets.aws.node import parameters
from infra.targets.aws.node.bake import ImageJob
from infra.targets.aws.node.cloud import package_store_command
from infra.targets.aws.plan import images
from infra.targets.aws.plan.user_data import user_data
from infra.targets.aws.spec import aws_section, read_end
from infra.targets.mixins import MachineImage
from infra.targets.target import Console, Deployment
from slurm.power.launcher import LauncherError


@dataclass(frozen=True)
class ImageBuilds:
    """The builds of one command."""

    spec: ClusterSpec
    home: Home
    account: AccountRegion
    site: BuildSite
    console: Console

    def run(self, purposes: Sequence[str] = ()) -> dict[str, MachineImage]:
        """Build all images, or those of some purposes, and return them by the field that names them."""
        self.clear()
        planned = [image for image in plan_images(self.spec) if not purposes or image.purpose in purposes]
        return {image.field: self._build(image) for image in planned}

    def clear(self) -> None:
        """Remove what builds that were killed have left."""
        for id_ in end_earlier(AwsApi(self.site.region), self.site.cluster):
            self.console.say(f"ended the machine {id_} of an earlier build")
        for id_ in baked_images.remove_untested(self.account, self.site.cluster):
            self.console.say(f"removed the image {id_} of an earlier build, which was not tested")

    def _build(self, image: PlannedImage) -> MachineImage:
        source, base = self.find_base(image)
        bundle = self._pack(image)
        self.account.client("s3").put_object(
            Bucket=self.site.bucket, Key=parameters.bundle(bundle.sha256), Body=bundle.archive
        )
        tags = self._tag(image, bundle, source, base)
        with self._machine(image, f"building the {image.purpose} image from {base}") as machine:
            machine.launch(self._require(base), image.builder_type, self._render_user_data(image, bundle, "bake"))
            machine.wait_until_ready()
            packages = self._read_packages(image.purpose, machine.id)
            if kernel := baked_images.find_client_kernel(packages):
                tags[baked_images.LUSTRE_TAG] = kernel
            machine.stop()
            name = aws_names.prefixed(self.site.cluster, image.purpose, tags[baked_images.BUILT_TAG].replace(":", "-"))
            built = machine.create_image(name, tags)
            with self._removed_after_error(built):
                machine.wait_for_image(built)
        with self._removed_after_error(built):
            raw = self._require(built)
            with self._machine(image, f"testing {built}") as machine:
                machine.launch(raw, image.builder_type, self._render_user_data(image, bundle, "bake --check"))
                machine.wait_until_ready()
            baked_images.keep(self.account, raw)
        path = baked_images.write_record(self.home, Record(built, self.site.region, tags, packages))
        self.console.say(f"{image.purpose} image {built}: built from {base} and tested; contents: {path}")
        return baked_images.parse_image(raw)

    def find_base(self, image: PlannedImage) -> tuple[str, str]:
        """Return where the base image comes from, and its id: AWS's newest, or one that the spec names.

        An image that is itself baked is rebuilt from what it was built from, in its newest version.
        """
        source = image.own_image or image.parameter
        if image.own_image and (raw := baked_images.describe(self.account, image.own_image)):
            source = read_tags(raw.get("Tags")).get(baked_images.SOURCE_TAG, source)
        if not source.startswith("/"):
            return source, source
        return source, str(self.account.client("ssm").get_parameter(Name=source)["Parameter"]["Value"])

    def _require(self, image: str) -> Mapping[str, Any]:
        if raw := baked_images.describe(self.account, image):
            return raw
        what = f"image '{image}' does not exist in {self.site.region}, or this account may not use it"
        raise ResourceError("", what, "name a base image that `aws ec2 describe-images` lists, or remove `aws.ami`")

    @contextmanager
    def _removed_after_error(self, image: str) -> Iterator[None]:
        """Remove an image that was not tested: its snapshot costs money."""
        try:
            yield
        except BaseException:
            try:
                if raw := baked_images.describe(self.account, image):
                    baked_images.remove(self.account, raw)
            except (ClientError, BotoCoreError) as refusal:
                self.console.say(
                    f"the image {image}, which was not tested, still costs money ({classify_error(refusal).code}): "
                    "the next `muster image build` or `muster teardown` removes it"
                )
            raise

    @contextmanager
    def _machine(self, image: PlannedImage, text: str) -> Iterator[BuilderMachine]:
        with self.console.status(text) as line:
            machine = BuilderMachine(AwsApi(self.site.region), self.site, image.purpose, line.update)
            try:
                yield machine
            finally:
                if refusal := machine.end():
                    # The next build and teardown find it by its tag.
                    self.console.say(
                        f"warning: AWS refused to terminate {machine.id}, which built the {image.purpose} image "
                        f"({refusal}); it costs money until it ends itself, three hours after its start: terminate it"
                    )

    def _pack(self, image: PlannedImage) -> Bundle:
        store = package_store_command(self.site.region, self.site.bucket)
        job = ImageJob(
            contents=image.contents.model_copy(update={"package_store": store}),
            region=self.site.region,
            bucket=self.site.bucket,
            cluster=self.site.cluster,
            name=parameters.builder(image.purpose),
        )
        wheels = fetch_wheels(self.home.repo, self.home.cache, ARCHITECTURES[image.architecture])
        return pack_node(self.home.repo, wheels, {IMAGE: job.model_dump_json().encode()}, NODE_FOLDERS)

    def _render_user_data(self, image: PlannedImage, bundle: Bundle, program: str) -> str:
        section = aws_section(self.spec)
        return user_data(
            bucket=self.site.bucket,
            digest=bundle.digest,
            sha256=bundle.sha256,
            region=self.site.region,
            role=parameters.BUILDER,
            cluster=self.site.cluster,
            python=PYTHON.archives[ARCHITECTURES[image.architecture]],
            program=program,
            name=parameters.builder(image.purpose),
            # The machine also ends after three hours; what comes first counts.
            ends_at=read_end(section) if section else None,
        )

    def _tag(self, image: PlannedImage, bundle: Bundle, source: str, base: str) -> dict[str, str]:
        built = datetime.now(UTC).isoformat(timespec="seconds")
        return {
            **self.site.tags,
            **aws_names.name_tag(self.site.cluster, image.purpose),
            baked_images.PURPOSE_TAG: image.purpose,
            baked_images.SLURM_TAG: image.contents.slurm,
            baked_images.ROLES_TAG: " ".join(image.contents.roles),
            baked_images.BASE_TAG: base,
            baked_images.SOURCE_TAG: source,
            baked_images.CONTENTS_TAG: digest_contents(image.contents),
            baked_images.BUNDLE_TAG: bundle.digest,
            baked_images.BUILT_TAG: built.removesuffix("+00:00"),
        }

    def _read_packages(self, purpose: str, machine: str) -> Mapping[str, str]:
        """Return the list that this machine stored; other machines of its role can store one only under their id."""
        s3, name = self.account.client("s3"), parameters.builder(purpose)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.site.bucket, Prefix=parameters.logs(name))
        keys = (item["Key"] for page in pages for item in page.get("Contents", []))
        own = (key for key in keys if parameters.read_machine(name, key, parameters.PACKAGE_LIST) == machine)
        if not (key := next(own, "")):
            raise ResourceError("", f"the machine {machine} did not store the list of its packages", "build again")
        body = s3.get_object(Bucket=self.site.bucket, Key=key)["Body"].read()
        packages: Mapping[str, str] = json.loads(gzip.decompress(body))
        return packages


def build_images(
    spec: ClusterSpec, home: Home, deployment: Deployment, console: Console, purposes: Sequence[str] = ()
) -> dict[str, MachineImage]:
    """Build the images of a running cluster's stack; raise ResourceError if one fails."""
    _require_time(spec, datetime.now(UTC))
    account = AccountRegion(deployment.region)
    with explain_errors(deployment.region):
        site = find_site(spec, account, deployment)
        built = [image.id for image in baked_images.list_cluster_images(deployment)]
        return ImageBuilds(images.without_group_images(spec, built), home, account, site, console).run(purposes)


def _require_time(spec: ClusterSpec, now: datetime) -> None:
    """Raise ResourceError if the cluster ends too soon: the machines of a build end with it."""
    section = aws_section(spec)
    end = read_end(section) if section else None
    if section is None or end is None or not is_near(section, now):
        return
    ahead = f"'{section.ends_at}' is {describe_time_left(end, now)} ahead"
    what = f"{ahead}, and machines that build images end then, too; allowed: an hour or more"
    raise ResourceError("aws.ends_at", what, "build images in a cluster with a later end, or with none")


def find_site(spec: ClusterSpec, account: AccountRegion, deployment: Deployment) -> BuildSite:
    """Return where the machines of builds run: in a subnet of the cluster, which has to be up."""
    bucket = aws_names.bucket(deployment.cluster, account.account_id, account.region)
    try:
        text = account.client("s3").get_object(Bucket=bucket, Key=parameters.FLEET)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("NoSuchBucket", "NoSuchKey"):
            raise
        what = (
            f"cluster {deployment.cluster} is not up; images are built in its subnet, from packages that it has built"
        )
        raise ResourceError("", what, "run `muster up` first") from None
    group = Fleet.model_validate_json(text).groups[0]
    section = aws_section(spec)
    return BuildSite(
        cluster=deployment.cluster,
        stack=deployment.stack,
        region=deployment.region,
        bucket=bucket,
        subnet_id=group.options[0].subnet_id,
        security_groups=group.security_groups,
        tags=aws_names.cluster_tags(deployment.cluster, deployment.stack, spec.tags),
        kms_key=section.kms_key if section else None,
    )


@contextmanager
def explain_errors(region: str) -> Iterator[None]:
    """Turn errors of AWS into a ResourceError."""
    try:
        yield
    except (LauncherError, ClientError, BotoCoreError) as error:
        fault = error.fault if isinstance(error, LauncherError) else classify_error(error)
        fix = "use credentials that may build images: docs/aws.md lists the permissions"
        if fault.kind != "permission":
            fix = "remove the cause and build again; what this build has launched is ended"
        raise ResourceError("", f"AWS refused {_name_call(error)} in {region}: {fault}", fix) from error


def _name_call(error: LauncherError | ClientError | BotoCoreError) -> str:
    """Return the refused call as AWS names it."""
    cause = error.__cause__ if isinstance(error, LauncherError) else error
    return cause.operation_name if isinstance(cause, ClientError) else "a call"
