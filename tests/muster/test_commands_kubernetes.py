"""`muster kubernetes`: rendering, errors, and the calls of kubectl, which is replaced by a script that records them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from infra.engine.stop import BAD_INPUT, Stop
from muster.cli import app

OPTIONS = ("--image", "registry.example.org/trainer:1", "--claim", "runs")
# Answers as kubectl does, and appends its arguments and input to files.
KUBECTL = """#!/bin/sh
echo "$*" >>"$CALLS/calls"
case "$*" in
  *api-resources*) cat "$CALLS/api-resources" && . "$CALLS/api-resources.sh" ;;
  *"get pods"*jsonpath*) if [ -e "$CALLS/pods" ]; then echo "150 150"; fi ;;
  *"get pods"*) cat "$CALLS/pods" ;;
  *"wait pods"*) . "$CALLS/wait.sh" ;;
  *"get persistentvolumeclaims"*) cat "$CALLS/claims" ;;
  *"get jobs"*--output=name) cat "$CALLS/existing" ;;
  *apply*) cat >"$CALLS/applied" && echo "jobset.jobset.x-k8s.io/tiny-llama created" ;;
  *delete*) echo 'jobset.jobset.x-k8s.io "llama" deleted' ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the script into PATH and return the folder of its files; its cluster has JobSet and no jobs."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    (tmp_path / "api-resources").write_text("jobsets.jobset.x-k8s.io\n")
    (tmp_path / "api-resources.sh").write_text("")
    (tmp_path / "existing").write_text("")
    (tmp_path / "claims").write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> str:
    """Run the command and return its output; errors are raised."""
    done = CliRunner().invoke(app, ["kubernetes", *arguments], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def fail(*arguments: str) -> Stop:
    with pytest.raises(Stop) as error:
        run(*arguments)
    return error.value


def test_render_prints_manifests_that_kubectl_reads() -> None:
    manifests = list(yaml.safe_load_all(run("render", "tiny-llama", "steps=20", *OPTIONS)))
    assert [manifest["kind"] for manifest in manifests] == ["NetworkPolicy", "JobSet"]
    assert manifests[1]["metadata"]["name"] == "tiny-llama"


def test_a_settings_file_is_mounted_with_all_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text("base: tiny-llama\nsteps: 7\n")
    (tmp_path / "My_Run.yaml").write_text("base: common.yaml\nbatch: {size: 8}\n")
    manifests = list(yaml.safe_load_all(run("render", str(tmp_path / "My_Run.yaml"), "run.seed=3", *OPTIONS)))
    settings, _, job_set = manifests
    tree = yaml.safe_load(settings["data"]["run.yaml"])
    assert (tree["name"], tree["steps"], tree["batch"]["size"], "base" in tree) == ("My_Run", 7, 8, False)
    assert job_set["metadata"]["name"] == "my-run"
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["/settings/run.yaml", "run.seed=3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny-lama",), "tiny-lama: neither a preset nor a file; did you mean the preset tiny-llama?"),
        (("tiny-llama", "steps=x"), "steps"),
        (("tiny-llama", "run.folder=/runs/a"), "run.folder: is /runs/tiny-llama in the pods; leave it out"),
        (
            ("tiny-llama", "data.kind=tokens", "data.path=/home/me/shards"),
            "data.path: '/home/me/shards' is not a folder of the pods; use /runs/... (the claim for runs) or /data/...",
        ),
        (
            ("tiny-llama", "data.kind=tokens", "data.path=s3://bucket/a", "data.cache=/data/copies"),
            "data.cache: '/data/copies' is not a folder of the pods; use /tmp/... (a disk of the node)",
        ),
        (("tiny-llama", "batch.size=7"), "batch.size"),
        (("tiny-llama", "--nodes", "0"), "--nodes: 0 is not allowed; use 1 to 10000"),
        (("tiny-llama", "--rdma", "efa"), "--rdma: 'efa' is not a pair"),
        (("tiny-llama", "--rdma", "rdma/hca=two"), "--rdma: rdma/hca=two: 'two' is not a number"),
        (("tiny-llama", "--node-selector", "gpu"), "--node-selector: 'gpu' is not a pair"),
    ],
)
def test_bad_values_are_refused_before_kubectl_runs(kubectl: Path, arguments: tuple[str, ...], message: str) -> None:
    stop = fail("apply", *arguments, *OPTIONS)
    assert (message in stop.what, stop.code) == (True, BAD_INPUT), stop.what
    assert not (kubectl / "calls").exists()


def test_the_run_folder_of_a_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("base: tiny-llama\nrun: {folder: /home/me/run}\n")
    stop = fail("render", str(tmp_path / "run.yaml"), *OPTIONS)
    assert "run.folder: is /runs/run in the pods; leave it out, and choose the name with --name" in stop.what


def test_copies_of_shards_may_be_on_the_disk_of_the_node() -> None:
    run("render", "tiny-llama", "data.kind=tokens", "data.path=s3://bucket/a", "data.cache=/tmp/copies", *OPTIONS)


def test_apply_passes_the_manifests_to_kubectl(kubectl: Path) -> None:
    output = run("apply", "tiny-llama", *OPTIONS, "-n", "research", "--context", "lab", "--tensorboard-image", "tb:1")
    calls = (kubectl / "calls").read_text().splitlines()
    assert calls[-1] == "--context=lab --namespace=research apply --filename=-"
    assert "JobSet" in [manifest["kind"] for manifest in yaml.safe_load_all((kubectl / "applied").read_text())]
    options = "kubectl --context=lab --namespace=research"
    assert f"{options} logs -l app.kubernetes.io/instance=tiny-llama,app.kubernetes.io/component=trainer" in output
    assert f"{options} port-forward service/tiny-llama-tensorboard 6006" in output
    assert ".venv/bin/muster kubernetes delete tiny-llama --context=lab --namespace=research" in output


def test_apply_without_jobset_names_the_other_form(kubectl: Path) -> None:
    (kubectl / "api-resources").write_text("")
    stop = fail("apply", "tiny-llama", *OPTIONS)
    assert stop.what == "--form jobset: the cluster has no jobsets.jobset.x-k8s.io"
    assert stop.fix.endswith("or use --form job")
    run("apply", "tiny-llama", *OPTIONS, "--form", "job")
    assert "kind: Job\n" in (kubectl / "applied").read_text()


def test_a_cluster_that_does_not_answer_is_one_line_without_kubectls_log(kubectl: Path) -> None:
    log = "E1119 12:00:00.000000    7 memcache.go:265] dial tcp 127.0.0.1:8080: connect: connection refused"
    refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    (kubectl / "api-resources").write_text("")
    (kubectl / "api-resources.sh").write_text(f"printf '%s\\n' '{log}' '{log}' '{refused}' >&2; exit 1")
    stop = fail("apply", "tiny-llama", *OPTIONS)
    assert stop.what == f"kubectl has no cluster, or it does not answer: {refused}"
    assert stop.fix == "choose one with --context; `kubectl config get-contexts` lists them"


def test_another_api_that_is_down_does_not_matter(kubectl: Path) -> None:
    error = "error: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: not available"
    (kubectl / "api-resources.sh").write_text(f"echo '{error}' >&2; exit 1")
    run("apply", "tiny-llama", *OPTIONS)
    assert "kind: JobSet\n" in (kubectl / "applied").read_text()
    (kubectl / "api-resources").write_text("")
    assert fail("apply", "tiny-llama", *OPTIONS).what == "--form jobset: the cluster has no jobsets.jobset.x-k8s.io"
    down = error.replace("metrics.k8s.io", "jobset.x-k8s.io")
    (kubectl / "api-resources.sh").write_text(f"echo '{down}' >&2; exit 1")
    assert fail("apply", "tiny-llama", *OPTIONS).what == f"kubectl: {down}"


def test_apply_does_not_change_a_job_that_exists(kubectl: Path) -> None:
    (kubectl / "existing").write_text("jobset.jobset.x-k8s.io/tiny-llama\n")
    stop = fail("apply", "tiny-llama", *OPTIONS)
    assert stop.what == "--name: tiny-llama exists already (jobset.jobset.x-k8s.io/tiny-llama)"
    assert "`.venv/bin/muster kubernetes delete tiny-llama` keeps its checkpoints" in stop.fix
    assert not (kubectl / "applied").exists()


def list_deletions(kubectl: Path) -> list[str]:
    """Return the calls that delete or wait, in their order."""
    calls = (kubectl / "calls").read_text().splitlines()
    return [call.partition(" --selector")[0] for call in calls if call.startswith(("delete", "wait"))]


def test_delete_keeps_the_claim(kubectl: Path) -> None:
    (kubectl / "claims").write_text("persistentvolumeclaim/llama-runs\n")
    output = run("delete", "llama")
    first, last = list_deletions(kubectl)
    assert first.startswith("delete jobsets.jobset.x-k8s.io,jobs.batch,")
    assert last == "delete networkpolicies.networking.k8s.io"
    assert "kept with all checkpoints: persistentvolumeclaim/llama-runs" in output
    run("delete", "llama", "--delete-storage")
    assert list_deletions(kubectl)[-1] == "delete networkpolicies.networking.k8s.io,persistentvolumeclaims"


def test_delete_protects_pods_that_still_save(kubectl: Path) -> None:
    (kubectl / "existing").write_text("jobset.jobset.x-k8s.io/llama\n")
    (kubectl / "pods").write_text("pod/llama-node-0-0\n")
    (kubectl / "wait.sh").write_text("exit 1")
    stop = fail("delete", "llama")
    assert stop.what == "llama: pods have not ended within 180 s: pod/llama-node-0-0"
    assert not any("networkpolicies" in call for call in list_deletions(kubectl))
    # They end after kubectl has listed them.
    (kubectl / "wait.sh").write_text(': >"$CALLS/pods"; exit 1')
    run("delete", "llama")
    assert list_deletions(kubectl)[-2:] == ["wait pods", "delete networkpolicies.networking.k8s.io"]


def test_delete_of_an_unknown_job_names_the_namespace(kubectl: Path) -> None:
    stop = fail("delete", "lama", "-n", "research")
    assert (stop.what, stop.code) == ("lama: no such job in namespace research", BAD_INPUT)
    assert "delete" not in (kubectl / "calls").read_text()


def test_status_of_an_unknown_job_names_the_namespace(kubectl: Path) -> None:
    stop = fail("status", "lama", "-n", "research")
    assert stop.what == "lama: no such job in namespace research"


def test_errors_of_kubectl_are_shown(kubectl: Path) -> None:
    (kubectl / "bin" / "kubectl").write_text("#!/bin/sh\necho 'error: connection refused' >&2; exit 1\n")
    stop = fail("status", "llama")
    assert stop.what == "kubectl: error: connection refused"


def test_without_kubectl_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    stop = fail("apply", "tiny-llama", *OPTIONS)
    assert stop.what == "kubectl is not installed, or not in PATH"
