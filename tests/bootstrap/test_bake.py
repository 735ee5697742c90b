"""Images: which steps install something in them, that nothing of a cluster gets in, and what a machine makes of one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.bake import (
    COMPILE_SCRIPT,
    build_image_probe,
    describe_contents,
    digest_contents,
    find_shortfall,
    plan_image,
)
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents, ImageRecord
from bootstrap.steps import packages, registry
from bootstrap.steps.cloud import slurm_packages
from bootstrap.steps.cloud.slurm_packages import ARCHIVE_MARKER, PackageBuild
from cluster.inventory import Role
from cluster.spec.model import Software
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from tests.infra.targets.aws.node.clusters import EFS, LUSTRE, desired, fixed, ubuntu

ROLES: tuple[Role, ...] = ("controller", "login", "compute")
CONTENTS = ImageContents(
    roles=ROLES, slurm="26.05", filesystems=("efs", "lustre"), lustre_client=LUSTRE_CLIENT, package_store=("store",)
)
CONTROLLER = fixed("controller", "controller", 10)
KEY = PackageBuild("26.05", "ubuntu 22.04", (), "").key
SLURM = dict.fromkeys(slurm_packages.list_names(ROLES), "26.05.5-1")


def install_all(facts: Facts, contents: ImageContents = CONTENTS) -> Facts:
    """Return the facts of a machine after an image was baked on it."""
    client = {f"lustre-client-modules-{facts.kernel}": "2.15"} if "lustre" in contents.filesystems else {}
    distributed = {name: "1.0" for name in build_image_probe(contents).packages if name not in packages.SLURM}
    return replace(facts, packages={**distributed, **client, **SLURM}, markers={ARCHIVE_MARKER: KEY})


def test_the_steps_that_install_something_are_baked_kernel_first() -> None:
    assert [step.name for step in registry.BAKED] == ["updates", "lustre", "slurm", "packages", "time"]
    assert registry.BAKED[:2] == registry.KERNEL


def test_every_step_that_installs_packages_on_a_cloud_machine_is_baked() -> None:
    """A step that is left out would install its packages at every boot, also from a baked image."""
    facts, target = install_all(ubuntu()), desired(LUSTRE, EFS)
    for role in ROLES:
        node = fixed(role, role, 10)
        planned = {step.name: step.actions(facts, node, target) for step in registry.EVERY if role in step.roles}
        installs = [name for name, todo in planned.items() if any("apt-get" in action.script for action in todo)]
        # chrony's own start installs the package only if it is missing.
        assert installs in ([], ["time"])


def test_a_new_machine_installs_everything_and_a_baked_one_nothing() -> None:
    titles = [action.title for step in plan_image(ubuntu(), CONTENTS) for action in step.actions]
    assert "build Slurm 26.05.5" in titles
    (transaction,) = [title.split() for title in titles if "mariadb-server" in title]
    assert {"g++", "mdadm", "nfs-common", "stunnel4", "nftables", *SLURM} <= set(transaction)
    assert not {"slurmctld", "slurmd"} & set(transaction)
    left = [
        step for step in plan_image(install_all(ubuntu()), CONTENTS) if step.actions and step.step.name != "updates"
    ]
    assert [(step.step.name, [a.title for a in step.actions]) for step in left] == [
        ("lustre", ["write /etc/modprobe.d/muster.conf"])
    ]


def test_an_image_gets_nothing_that_it_does_not_need() -> None:
    contents = ImageContents(roles=("compute",), slurm="26.05")
    titles = [action.title for step in plan_image(ubuntu(), contents) for action in step.actions]
    assert not [title for title in titles if "lustre" in title or "nfs" in title or "mariadb" in title]


def test_the_digest_follows_what_is_installed_but_not_the_cluster() -> None:
    assert digest_contents(CONTENTS) == digest_contents(CONTENTS.model_copy(update={"package_store": ("other",)}))
    others = ({"slurm": "24.11"}, {"roles": ("compute",)}, {"filesystems": ("efs",)})
    digests = [digest_contents(CONTENTS.model_copy(update=other)) for other in ({}, *others)]
    assert len(set(digests)) == len(digests)


def test_contents_come_from_the_cluster_without_its_names() -> None:
    contents = describe_contents(desired(LUSTRE, EFS), ("compute",))
    assert (contents.roles, contents.slurm, contents.filesystems) == (("compute",), "26.05", ("efs", "lustre"))
    text = contents.model_copy(update={"package_store": ()}).model_dump_json()
    assert not [word for word in ("toy", "10.0.0", "fs-0", "password", "AAAA") if word in text]


@pytest.mark.parametrize(
    ("image", "expected", "shortfall"),
    [
        ({}, {}, ""),
        ({"filesystems": ("efs",)}, {}, "it has no client for lustre"),
        ({"roles": ("compute",)}, {"roles": ("controller",)}, "it was built for compute, not for controller"),
    ],
)
def test_a_machine_says_what_its_image_lacks(
    image: dict[str, object], expected: dict[str, object], shortfall: str
) -> None:
    contents = CONTENTS.model_copy(update=image)
    record = ImageRecord(contents=contents, digest=digest_contents(contents), bundle="b", built="2026-11-16")
    assert find_shortfall(record, CONTENTS.model_copy(update={"roles": ("compute",), **expected})) == shortfall


def test_an_image_of_another_version_is_recognized() -> None:
    record = ImageRecord(contents=CONTENTS, digest="0" * 16, bundle="b", built="2026-11-16")
    assert find_shortfall(record, CONTENTS) == "another version of muster built it"


def test_a_baked_machine_leaves_storing_the_archive_to_the_controller() -> None:
    (build,) = slurm_packages.bake_slurm(ubuntu(), CONTENTS)
    assert "MODE=bake\n" in build.script
    assert build.script.endswith(f"echo {KEY} > /var/lib/muster/{ARCHIVE_MARKER}")


def test_a_controller_shares_the_archive_of_its_image_once() -> None:
    facts, target = install_all(ubuntu()), desired()
    (share,) = slurm_packages.STEP.actions(facts, CONTROLLER, target)
    assert share.title == "share the image's packages of Slurm"
    assert f"package_store us-east-1 bucket {KEY} store {slurm_packages.WORK}/{KEY}.tar" in share.script
    assert share.script.endswith(f"rm /var/lib/muster/{ARCHIVE_MARKER}")
    assert slurm_packages.STEP.actions(replace(facts, markers={}), CONTROLLER, target) == []
    assert slurm_packages.STEP.actions(facts, fixed("login", "login", 11), target) == []


def test_a_machine_from_an_older_image_gets_the_new_version_although_the_packages_are_held() -> None:
    older = replace(install_all(ubuntu()), packages=dict.fromkeys(SLURM, "26.05.4-1"))
    (install,) = packages.STEP.actions(older, CONTROLLER, desired())
    assert "--no-install-recommends --allow-change-held-packages " in install.script


def test_an_image_of_another_release_of_slurm_is_refused() -> None:
    target = desired()
    other = replace(target, spec=target.spec.model_copy(update={"software": Software(slurm="24.11")}))
    for step in (slurm_packages.STEP, packages.STEP):
        with pytest.raises(BootstrapError, match=r"Slurm 26\.05\.5-1 is installed, but software\.slurm is 24\.11"):
            step.actions(install_all(ubuntu()), CONTROLLER, other)


def _compile(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run COMPILE_SCRIPT with a folder in the place of the one that muster is installed in."""
    script = COMPILE_SCRIPT.replace("/opt/muster", str(folder))
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True)


def test_an_image_has_compiled_modules_even_if_some_are_for_another_python(tmp_path: Path) -> None:
    modules = tmp_path / "bundle" / "venv" / "lib"
    (modules / "package").mkdir(parents=True)
    (modules / "package" / "good.py").write_text("x = 1\n")
    (modules / "other.py").write_text("print 'of Python 2'\n")
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "standard.py").write_text("x = 1\n")
    (tmp_path / "bundle" / "venv" / "bin").mkdir()
    (tmp_path / "bundle" / "venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "current").symlink_to(tmp_path / "bundle")
    done = _compile(tmp_path)
    assert done.returncode == 0, done.stderr
    compiled = {path.name.split(".")[0] for path in tmp_path.rglob("__pycache__/*.pyc")}
    assert compiled == {"good", "standard"}


def test_an_image_without_an_interpreter_is_not_finished(tmp_path: Path) -> None:
    (tmp_path / "current" / "venv" / "lib").mkdir(parents=True)
    done = _compile(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"no program {tmp_path}/current/venv/bin/python: nothing can be compiled\n"
