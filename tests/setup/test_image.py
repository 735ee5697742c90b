"""The node image: its digest covers all its inputs, and it boots quickly into a bare system."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from setup import env, image, pins
from setup.paths import Paths
from setup.run import SetupError
from tests.setup.machine import machine

CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_NICE", "SYS_PTRACE", "IPC_LOCK")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    sources = tmp_path / "setup" / "image" / "rootfs" / "etc"
    sources.mkdir(parents=True)
    (sources / "some.conf").write_text("a")
    (sources.parent.parent / "Dockerfile").write_text("FROM x")
    (sources.parent.parent / "entry.sh").write_text("#!/bin/sh")
    (tmp_path / "certificates").mkdir()
    return Paths(tmp_path, tmp_path)


def test_the_digest_covers_sources_certificates_and_base(paths: Paths) -> None:
    certificates = paths.root / "certificates"

    def digest(kind: str = "official") -> str:
        return image.digest(image.context_files(paths, certificates), kind)

    first = digest()
    assert digest() == first
    assert digest("debootstrap") != first
    (certificates / "company.crt").write_text("certificate")
    assert (second := digest()) != first
    (certificates / "notes.txt").write_text("not a certificate")
    assert digest() == second
    (paths.root / "setup/image/rootfs/etc/some.conf").write_text("b")
    assert digest() not in (first, second)


def test_a_new_pin_changes_the_digest_on_the_official_base_only(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    context = image.context_files(paths, paths.root)
    before = {kind: image.digest(context, kind) for kind in image.BASE_KINDS}
    monkeypatch.setattr(pins, "OFFICIAL_BASE", "debian@sha256:other")
    changed = {kind for kind in image.BASE_KINDS if image.digest(context, kind) != before[kind]}
    assert changed == {"official"}


# Answers as an engine that has the base with that label, if any, and that can or cannot pull.
DOCKER = """#!/bin/sh
echo "$1 $2 $3" >>{folder}/calls
case "$1 $2" in
  "image inspect") [ "$3" = -f ] && [ -n "{present}" ] && echo "{label}" ;;
  "pull "*) {pull} ;;
esac
"""


@pytest.mark.parametrize(
    ("present", "label", "pull", "kind", "notice"),
    [
        ("yes", "debootstrap", "true", "debootstrap", ""),
        ("yes", "", "true", "official", ""),
        ("yes", "", "false", "official", "cannot be pulled; using the present muster-base:trixie"),
        ("", "", "true", "official", ""),
        ("", "", "false", "debootstrap", "cannot be pulled; creating the base with debootstrap instead"),
    ],
)
def test_the_pinned_base_replaces_another_official_one(
    present: str,
    label: str,
    pull: str,
    kind: str,
    notice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(folder=tmp_path, present=present, label=label, pull=pull))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for step in ("create_debian", "_import_base"):
        monkeypatch.setattr(image, step, lambda *_: None)
    assert image.ensure_base(Paths(tmp_path, tmp_path), tmp_path / "log") == kind
    printed = capsys.readouterr().out
    assert printed == (f"image: {pins.OFFICIAL_BASE} {notice}\n" if notice else "")
    tagged = f"tag {pins.OFFICIAL_BASE} {pins.BASE_IMAGE}" in (tmp_path / "calls").read_text().splitlines()
    assert tagged == (kind == "official" and pull == "true")


def test_the_context_does_not_depend_on_owner_or_umask(paths: Paths) -> None:
    (paths.root / "setup/image/entry.sh").chmod(0o600)
    with tarfile.open(fileobj=io.BytesIO(image.pack_context(image.context_files(paths, paths.root)))) as archive:
        entries = {entry.name: (oct(entry.mode), entry.uid) for entry in archive}
    assert entries == {
        "Dockerfile": ("0o644", 0),
        "ca-certificates": ("0o755", 0),
        "entry.sh": ("0o755", 0),
        "rootfs": ("0o755", 0),
        "rootfs/etc": ("0o755", 0),
        "rootfs/etc/some.conf": ("0o644", 0),
    }


@pytest.mark.engine
def test_the_image_was_built_from_these_sources(paths: Paths) -> None:
    assert image.is_current(Paths.from_environment())
    assert not image.is_current(paths)
    assert image.read_label(pins.NODE_IMAGE, "muster.cache") == "image"
    assert image.read_label("muster-node:never-made", "muster.hash") is None


def test_an_engine_error_does_not_count_as_a_missing_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SetupError, match=f"the Docker engine cannot inspect the image {pins.NODE_IMAGE}: "):
        image.read_label(pins.NODE_IMAGE, "muster.hash")


@pytest.fixture
def node() -> Iterator[str]:
    name = f"muster-setup-{uuid.uuid4().hex[:8]}"
    group = "host" if _output("stat", "-fc", "%T", "/sys/fs/cgroup") != "cgroup2fs" else "private"
    options = [f"--cap-add={capability}" for capability in CAPABILITIES]
    options += ["--security-opt=seccomp=unconfined", f"--cgroupns={group}", "--tmpfs=/run:exec", "--tmpfs=/tmp:exec"]
    options += [f"--label=muster.cluster={name}", f"--env=MUSTER_CLUSTER={name}", "--network=none"]
    _output("docker", "run", "-d", "--name", name, "--hostname", name, *options, pins.NODE_IMAGE)
    yield name
    subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=True)
    for tree in (Path("/sys/fs/cgroup/unified/muster") / name, Path("/sys/fs/cgroup/muster") / name):
        for folder in sorted(tree.rglob("*"), reverse=True) if tree.is_dir() else ():
            if folder.is_dir():
                folder.rmdir()
        if tree.is_dir():
            tree.rmdir()


@pytest.mark.engine
def test_a_bare_node_boots_without_anything_that_bootstrap_installs(node: str) -> None:
    started = time.monotonic()
    state = ""
    while state not in ("running", "degraded") and time.monotonic() - started < 240:
        # `docker exec` can fail while PID 1 is still changing its mounts.
        reply = subprocess.run(
            ["docker", "exec", node, "systemctl", "is-system-running"], capture_output=True, text=True
        )
        state = reply.stdout.strip()
    assert state == "running", _inside(node, "systemctl list-units --failed --no-legend")
    daemons = "slurmd slurmctld slurmdbd sackd mariadb munge"
    assert set(_inside(node, f"systemctl is-enabled {daemons} || true").split()) == {"disabled"}
    assert _inside(node, "systemctl is-active ssh") == "active"
    assert _inside(node, "ls /etc/ssh/ssh_host_*") == "/etc/ssh/ssh_host_ed25519_key\n/etc/ssh/ssh_host_ed25519_key.pub"
    assert len(_inside(node, "cat /etc/machine-id")) == 32
    assert _inside(node, "ls /etc/munge/munge.key 2>/dev/null || echo none") == "none"
    assert _inside(node, "stat -fc %T /sys/fs/cgroup") == "cgroup2fs"


@pytest.mark.engine
def test_a_node_can_hold_a_mount_namespace_of_every_cpu(node: str) -> None:
    """Slurm holds the folders of a job like this. In the namespace of its container, a node may be refused."""
    _inside(node, "until systemctl is-active --quiet ssh; do sleep 0.1; done")
    _inside(node, "mkdir /run/held && mount --bind /run/held /run/held && mount --make-private /run/held")
    hold = "taskset -c $cpu unshare --mount=/run/held/namespace true && umount /run/held/namespace && echo $cpu"
    held = _inside(node, f"touch /run/held/namespace; for cpu in $(seq 0 $(($(nproc) - 1))); do {hold}; done")
    assert held.split() == [str(cpu) for cpu in range(int(_inside(node, "nproc")))]


@pytest.mark.engine
def test_a_container_that_may_not_create_namespaces_starts_its_program_once() -> None:
    script = Path(__file__).parents[2] / "setup" / "image" / "mount-namespace.py"
    options = ["--network=none", "--cap-drop=ALL", "--entrypoint=python3", f"--volume={script}:/script.py:ro"]
    start = ["-IS", "/script.py", "/usr/bin/echo", "started"]
    done = subprocess.run(
        ["docker", "run", "--rm", *options, pins.NODE_IMAGE, *start], capture_output=True, text=True, check=True
    )
    assert done.stdout == "started\n"
    assert "mount-namespace: Slurm may be unable to start jobs here" in done.stderr


@pytest.mark.engine
def test_the_image_contains_no_keys_and_no_machine_id() -> None:
    secrets = "host_|machine-id|munge.key"
    look = f"stat -c %s /etc/machine-id; ls /etc/ssh /var/lib/dbus /etc/munge | grep -E '{secrets}' || true"
    assert _output("docker", "run", "--rm", "--network=none", pins.NODE_IMAGE, "sh", "-c", look) == "0"


@pytest.mark.engine
def test_an_existing_base_is_not_replaced(tmp_path: Path) -> None:
    before = _output("docker", "image", "inspect", "-f", "{{.Id}}", pins.BASE_IMAGE)
    assert image.ensure_base(Paths(tmp_path, tmp_path), tmp_path / "log") in image.BASE_KINDS
    assert _output("docker", "image", "inspect", "-f", "{{.Id}}", pins.BASE_IMAGE) == before


@pytest.mark.parametrize(("existing", "offered"), [("image", True), ("manifest", True), ("nothing", False)])
def test_can_pull_base_does_not_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: str, offered: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/calls\n[ "$1" = {existing} ]\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert image.can_pull_base() is offered
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == (["image inspect"] if existing == "image" else ["image inspect"] * 2 + ["manifest inspect"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("global.cert='/etc/ssl/certs/ca-certificates.crt'\n:env:.find-links='/opt/wheels'", {}),
        ("global.index-url='https://index.test/simple'", {"PIP_INDEX_URL": "https://index.test/simple"}),
        (
            ":env:.extra-index-url='https://a.test/s'\nglobal.trusted-host='a.test\\nb.test'",
            {"PIP_EXTRA_INDEX_URL": "https://a.test/s", "PIP_TRUSTED_HOST": "a.test b.test"},
        ),
    ],
)
def test_nodes_use_the_package_index_of_the_machine(text: str, expected: dict[str, str]) -> None:
    assert env.parse_pip_settings(text) == expected


def test_an_index_token_is_not_in_command_lines_or_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a stub `docker` that logs its arguments and its environment."""
    token = "t0p-s3cret"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/argv\nenv > {tmp_path}/environment.$1\necho answer\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("https_proxy", f"http://user:{token}@proxy.test:3128")
    index = {"PIP_INDEX_URL": f"https://user:{token}@index.test/simple"}
    monkeypatch.setattr(env, "pip_settings", lambda _: index)
    env.fill(Paths(Paths.from_environment().root, tmp_path), machine(), tmp_path / "env.log")

    environment = (tmp_path / "environment.run").read_text().splitlines()
    assert f"PIP_INDEX_URL={index['PIP_INDEX_URL']}" in environment
    argv = (tmp_path / "argv").read_text()
    assert "-e https_proxy" in argv
    assert "-e PIP_INDEX_URL" in argv
    assert token not in argv
    assert token not in (tmp_path / "env.log").read_text()


@pytest.mark.engine
def test_a_new_volume_or_lock_needs_a_new_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Paths.from_environment()
    assert env.is_filled(here)
    node = [pins.NODE_IMAGE, "sh", "-c", "mkdir -p /shared/env/other && rmdir /shared/env/other"]
    _output("docker", "run", "--rm", "--network", "none", "-v", f"{pins.ENV_VOLUME}:/shared/env", *node)
    assert env.is_filled(here)
    (tmp_path / "env.json").write_text('{"key": "other", "volume": "2026')
    assert not env.is_filled(Paths(here.root, tmp_path))
    monkeypatch.setattr(pins, "ENV_VOLUME", "muster-cache-never-made")
    assert not env.is_filled(here)


def _inside(node: str, script: str) -> str:
    return _output("docker", "exec", node, "sh", "-c", script)


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
