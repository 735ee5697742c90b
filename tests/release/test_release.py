"""A release: the same bytes from the same commit, a signature by a listed key, and every change to it is noticed."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from release import __main__ as command
from release import archive, audit, cves
from release.archive import ReleaseError
from release.components import GO_SUMS, LOCKS, ROOT
from release.signature import ALLOWED, NAMESPACE, SIGNER, SignatureError, require_listed, sign, verify
from tests.harness import wait_until

VERSION = archive.read_version(ROOT)


def git(root: Path, *arguments: str) -> str:
    options = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    command_ = ["git", "-C", str(root), *options, *arguments]
    return subprocess.run(command_, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the files that a release reads, committed."""
    root = tmp_path_factory.mktemp("repo")
    for name in ("pyproject.toml", "README.md", *LOCKS, *GO_SUMS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "files")
    return root


@pytest.fixture(scope="module")
def built(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release, built once because the SBOM takes a second."""
    folder = tmp_path_factory.mktemp("release")
    archive.build(repo, folder)
    return folder


@pytest.fixture
def dist(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the release that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "dist"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def signers(tmp_path: Path, key: Path) -> Path:
    file = tmp_path / "allowed_signers"
    file.write_text(f'{SIGNER} namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    return file


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_the_same_commit_gives_the_same_bytes_whatever_the_settings_of_git(
    repo: Path, built: Path, tmp_path: Path
) -> None:
    names = [f"muster-{VERSION}.tar.gz", f"muster-{VERSION}.cdx.json", "SHA256SUMS"]
    git(repo, "config", "tar.umask", "0077")
    try:
        again = archive.build(repo, tmp_path)
    finally:
        git(repo, "config", "--unset", "tar.umask")
    assert [file.name for file in again] == names
    assert [file.read_bytes() for file in again] == [(built / name).read_bytes() for name in names]


@pytest.mark.parametrize("line", ["", "no-sum", "0123  muster.tar.gz", "0" * 64])
def test_a_malformed_list_of_checksums_is_rejected(line: str, tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{line}\n")
    with pytest.raises(ReleaseError, match="is not a SHA-256 and a file name: download it again"):
        archive.check_sums(tmp_path)


def test_the_archive_has_the_committed_files_in_one_folder(repo: Path, built: Path) -> None:
    with tarfile.open(built / f"muster-{VERSION}.tar.gz") as tar:
        names = {entry.name for entry in tar if entry.isfile()}
    assert names == {f"muster-{VERSION}/{name}" for name in git(repo, "ls-files").splitlines()}
    root = json.loads((built / f"muster-{VERSION}.cdx.json").read_text())["metadata"]["component"]
    assert root["properties"] == [{"name": "muster:commit", "value": git(repo, "rev-parse", "HEAD").strip()}]


def test_what_is_not_committed_is_refused(repo: Path, tmp_path: Path) -> None:
    extra = repo / "forgotten.py"
    extra.touch()
    with pytest.raises(ReleaseError, match=r"1 files are not committed, first forgotten\.py: commit or remove them"):
        archive.build(repo, tmp_path / "dist")
    extra.unlink()
    assert not (tmp_path / "dist").exists()


def test_a_signed_release_is_verified_by_the_documented_commands(dist: Path, key: Path, signers: Path) -> None:
    """Those of docs/release.md, which need no muster."""
    sign(dist / "SHA256SUMS", key, signers)
    page = (ROOT / "docs" / "release.md").read_text()
    block = page.partition("<!-- verify -->\n```bash\n")[2].partition("```")[0]
    assert "ssh-keygen -Y verify" in block
    shutil.copy(signers, dist / "allowed_signers")
    done = subprocess.run(["bash", "-ec", block], cwd=dist, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"muster-{VERSION}.tar.gz: OK" in done.stdout
    (dist / f"muster-{VERSION}.cdx.json").write_text("{}")
    assert subprocess.run(["bash", "-ec", block], cwd=dist, capture_output=True).returncode != 0


@pytest.mark.parametrize("in_agent", [False, True])
def test_a_key_that_is_not_listed_is_refused_with_the_line_to_add(in_agent: bool, tmp_path: Path, key: Path) -> None:
    file = tmp_path / "SHA256SUMS"
    file.write_text("sums\n")
    half = key.with_suffix(".pub")
    public = " ".join(half.read_text().split()[:2])
    agent = run_agent(key) if in_agent else nullcontext()
    with agent, pytest.raises(SignatureError, match="does not list the key") as error:
        sign(file, half if in_agent else key, ALLOWED)
    assert str(error.value).endswith(f'release namespaces="muster-release" {public}')
    assert not file.with_name("SHA256SUMS.sig").exists()


@contextmanager
def run_agent(key: Path) -> Iterator[None]:
    """Let ssh-agent have the private key and remove the file."""
    socket = key.with_name("agent")
    start = ["ssh-agent", "-D", "-a", str(socket)]
    with subprocess.Popen(start, stdout=subprocess.DEVNULL) as agent, pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSH_AUTH_SOCK", str(socket))
        try:
            wait_until(socket.exists, "ssh-agent listens")
            subprocess.run(["ssh-add", "-q", key], check=True)
            key.unlink()
            yield
        finally:
            agent.terminate()


@pytest.mark.parametrize("attack", ["sums", "stranger", "no signature", "other namespace"])
def test_a_forged_signature_is_rejected(attack: str, tmp_path: Path, key: Path, signers: Path) -> None:
    file = tmp_path / "SHA256SUMS"
    file.write_text("sums\n")
    signature = sign(file, key, signers)
    verify(file, signers)
    if attack == "sums":
        file.write_text("other sums\n")
    elif attack == "no signature":
        signature.unlink()
    else:
        # A signature by someone else, and one that the maintainer made for another purpose.
        signature.unlink()
        by = key if attack == "other namespace" else make_key(tmp_path / "stranger")
        name = "file" if attack == "other namespace" else NAMESPACE
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", by, "-n", name, file], check=True)
    with pytest.raises(SignatureError, match="not signed"):
        verify(file, signers)


@pytest.mark.parametrize(
    ("attack", "error"), [("change", "has SHA-256 .*: do not use it"), ("remove", "is missing, SHA256SUMS lists it")]
)
def test_a_changed_archive_is_rejected(attack: str, error: str, dist: Path) -> None:
    file = dist / f"muster-{VERSION}.tar.gz"
    if attack == "change":
        file.write_bytes(add_file(file.read_bytes()))
    else:
        file.unlink()
    with pytest.raises(ReleaseError, match=error):
        archive.check_sums(dist)


def add_file(content: bytes) -> bytes:
    """Return the archive with another program in it."""
    changed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as source, tarfile.open(fileobj=changed, mode="w:gz") as target:
        for entry in source:
            target.addfile(entry, source.extractfile(entry) if entry.isfile() else None)
        target.addfile(tarfile.TarInfo(f"muster-{VERSION}/sitecustomize.py"))
    return changed.getvalue()


def list_key(monkeypatch: pytest.MonkeyPatch, signers: Path) -> None:
    """Let the command read the list of a test instead of release/allowed_signers."""
    monkeypatch.setattr(command, "require_listed", lambda key: require_listed(key, signers))
    monkeypatch.setattr(command, "sign", lambda file, key: sign(file, key, signers))


def test_a_key_that_is_not_listed_is_refused_before_audit_and_build(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, name in ((cves, "main"), (audit, "main"), (archive, "build")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("this comes after the check of the key"))
    assert command.main(["build", "--key", str(key), "--folder", str(tmp_path / "dist")]) == 1
    assert f"does not list the key {key}: add and commit this line" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_a_key_that_cannot_sign_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent"
    assert command.main(["build", "--key", str(absent), "--folder", str(tmp_path / "dist")]) == 1
    shown = capsys.readouterr()
    assert (shown.out, f"cannot be signed with {absent}" in shown.err) == ("", True)


def test_nothing_is_built_if_the_audit_fails(
    tmp_path: Path, key: Path, signers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    list_key(monkeypatch, signers)
    monkeypatch.setattr(audit, "find_obstacle", lambda _: "no route to host")
    assert command.main(["build", "--key", str(key), "--folder", str(tmp_path / "dist")]) == 1
    assert "pip-audit did not run" in capsys.readouterr().out
    assert not (tmp_path / "dist").exists()


def test_build_and_verify_from_the_command_line(
    repo: Path, key: Path, signers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", repo)
    list_key(monkeypatch, signers)
    folder = str(key.parent / "dist")
    assert command.main(["build", "--key", str(key), "--folder", folder, "--no-audit"]) == 0
    assert "the Python packages were NOT audited" in capsys.readouterr().err
    assert command.main(["verify", folder, "--signers", str(signers)]) == 0
    assert capsys.readouterr().out.endswith(f"unchanged: muster-{VERSION}.tar.gz, muster-{VERSION}.cdx.json\n")
    monkeypatch.setenv("HOME", str(key.parent))
    assert command.main(["verify", "~/dist", "--signers", f"~/{signers.name}"]) == 0
    assert command.main(["verify", folder]) == 1
    assert "SHA256SUMS is not signed by a key in" in capsys.readouterr().err
