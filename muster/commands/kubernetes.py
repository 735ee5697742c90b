"""`muster kubernetes`: the trainer on a Kubernetes cluster that exists, through the user's kubectl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

from infra.engine.stop import BAD_INPUT, Stop
from k8s.job import DATA_MOUNT, END_S, INDEXED_JOB, JOBSET, RUNS_MOUNT, TMP_MOUNT, Problem, TrainingJob, check_job
from k8s.kubectl import JOB_RESOURCE, JOBSET_RESOURCE, TIMEOUT_S, Kubectl, KubectlError, KubectlMissing
from k8s.manifests import TENSORBOARD_PORT, dump_manifests
from k8s.manifests import render as render_manifests
from k8s.names import TRAINER, name_tensorboard, select
from k8s.pod import SETTINGS_FILE
from muster.commands import screen
from trainer.config.check import check_world
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import list_presets, load, read_tree
from trainer.config.schema import Config, RunConfig
from trainer.config.yaml_text import dump_yaml

_REMOVED = ("deployments.apps", "services", "configmaps")
_POLICY_RESOURCE = "networkpolicies.networking.k8s.io"
_CLAIM_RESOURCE = "persistentvolumeclaims"
_NO_ANSWER = ("connection to the server", "Unable to connect to the server", "did not answer")
_JOBSET_FIX = f"install JobSet (https://jobset.sigs.k8s.io/docs/installation/), or use --form {INDEXED_JOB}"


def render(job: TrainingJob) -> None:
    """Print the manifests of a job, whose first argument is a preset or a settings file."""
    print(dump_manifests(render_manifests(complete_job(job))), end="")


def apply(job: TrainingJob, context: str) -> None:
    """Create the objects of a job in the cluster of the user's kubectl."""
    job = complete_job(job)
    kubectl = Kubectl(job.namespace, context)
    try:
        with screen.status(f"creating {job.name}"):
            _check_cluster(job, kubectl)
            created = kubectl.run("apply", "--filename=-", data=dump_manifests(render_manifests(job)))
    except KubectlError as error:
        raise _explain(error) from None
    for line in created.splitlines():
        screen.say(line)
    screen.print_success(f"{job.name}: {job.nodes} x {job.ranks_per_node} ranks, run folder {job.run_folder}")
    screen.print_next_steps(_list_next_steps(job, kubectl))


def status(name: str, namespace: str, context: str) -> None:
    """Print the objects of a job."""
    kubectl = Kubectl(namespace, context)
    try:
        resources = [*_list_resources(kubectl), "pods", "services", _CLAIM_RESOURCE]
        text = kubectl.run("get", ",".join(resources), f"--selector={select(name)}", "--ignore-not-found")
    except KubectlError as error:
        raise _explain(error) from None
    if not text.strip():
        raise _report_missing(name, kubectl)
    print(text, end="")


def delete(name: str, namespace: str, context: str, *, delete_storage: bool) -> None:
    """Delete a job and its TensorBoard; the ranks save before they end, and the claim stays unless it is requested.

    The network policies go last: they protect the pods that still save.
    """
    kubectl, selector = Kubectl(namespace, context), f"--selector={select(name)}"
    try:
        resources = [*_list_resources(kubectl), *_REMOVED]
        claims = kubectl.list_objects([_CLAIM_RESOURCE], select(name))
        if not claims and not kubectl.list_objects([*resources, _POLICY_RESOURCE], select(name)):
            raise _report_missing(name, kubectl)
        with screen.status(f"deleting {name}: its ranks save first"):
            print(kubectl.run("delete", ",".join(resources), selector, "--wait=false"), end="")
            _wait_for_pods(name, kubectl)
            protecting = [_POLICY_RESOURCE, *([_CLAIM_RESOURCE] if delete_storage else [])]
            print(kubectl.run("delete", ",".join(protecting), selector, "--wait=false"), end="")
    except KubectlError as error:
        raise _explain(error) from None
    if claims and not delete_storage:
        screen.say(f"kept with all checkpoints: {', '.join(claims)}; --delete-storage deletes it")


def complete_job(job: TrainingJob) -> TrainingJob:
    """Return the job with a name and, for a settings file, its text; raise Stop with all problems of its values."""
    source, overrides = job.arguments[0], list(job.arguments[1:])
    try:
        config = load(source, overrides)
    except ConfigError as error:
        raise Stop(f"{error.summary}\n{error}", code=BAD_INPUT) from None
    job = replace(job, name=job.name or re.sub(r"[^a-z0-9]+", "-", config.name.lower()))
    problems: list[Problem | ConfigProblem] = [*check_job(job), *_check_settings(config, job)]
    if problems:
        summary = "1 value needs fixing" if len(problems) == 1 else f"{len(problems)} values need fixing"
        raise Stop("\n".join([f"{job.name}: {summary}", *map(str, problems)]), code=BAD_INPUT)
    if source in list_presets():
        return job
    # The file and those that it extends, as one.
    tree = {"name": config.name, **read_tree(source)}
    return replace(job, settings=dump_yaml(tree), arguments=(SETTINGS_FILE, *overrides))


def _check_settings(config: Config, job: TrainingJob) -> Iterator[Problem | ConfigProblem]:
    """Yield the problems that the settings have in pods: ranks, folders that they do not have, a read-only disk."""
    if config.run.folder != RunConfig().folder:
        yield Problem("run.folder", f"is {job.run_folder} in the pods", "leave it out, and choose the name with --name")
    if job.nodes > 0 and job.ranks_per_node > 0:
        yield from check_world(config, job.nodes * job.ranks_per_node, job.ranks_per_node)
    shared = (RUNS_MOUNT, *([DATA_MOUNT] if job.data_claim else []))
    for name, path in _list_paths(config):
        if name == "run.folder" or "://" in path:
            continue
        # Copies of remote shards are the only files of a run that belong on a disk of the node.
        mounts = (RUNS_MOUNT, TMP_MOUNT) if name == "data.cache" else shared
        if not path.startswith(tuple(f"{mount}/" for mount in mounts)):
            places = f"{RUNS_MOUNT}/... (the claim for runs) or {DATA_MOUNT}/... (--data-claim)"
            places = f"{TMP_MOUNT}/... (a disk of the node)" if name == "data.cache" else places
            yield Problem(name, f"{path!r} is not a folder of the pods", f"use {places}")


def _list_paths(section: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of every setting that is a path and is set; of a mixture, each PATH=WEIGHT."""
    if not is_dataclass(section):
        return
    for field in fields(section):
        value, name = getattr(section, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            yield from _list_paths(value, f"{name}.")
        elif field.metadata.get("is_path"):
            items = value if isinstance(value, (tuple, list)) else [value]
            yield from ((name, str(item).rpartition("=")[0] or str(item)) for item in items if item)


def _check_cluster(job: TrainingJob, kubectl: Kubectl) -> None:
    """Raise Stop if the cluster has no JobSet but the job needs it, or if it has a job of this name already."""
    resources = _list_resources(kubectl)
    if job.form == JOBSET and JOBSET_RESOURCE not in resources:
        raise Stop(f"--form {JOBSET}: the cluster has no {JOBSET_RESOURCE}", _JOBSET_FIX, BAD_INPUT)
    if existing := kubectl.list_objects(resources, select(job.name, TRAINER)):
        fix = f"`{_format_own_command('delete', job.name, kubectl)}` keeps its checkpoints; or choose another --name"
        raise Stop(f"--name: {job.name} exists already ({existing[0]})", fix, BAD_INPUT)


def _wait_for_pods(name: str, kubectl: Kubectl) -> None:
    """Wait until the trainer's pods have ended; raise Stop if they take longer than they may."""
    selector = f"--selector={select(name, TRAINER)}"
    periods = kubectl.run("get", "pods", selector, "--output=jsonpath={.items[*].spec.terminationGracePeriodSeconds}")
    if not periods.split():
        return
    timeout_s = max(map(int, periods.split())) + END_S
    try:
        kubectl.run(
            "wait", "pods", selector, "--for=delete", f"--timeout={timeout_s}s", timeout_s=timeout_s + TIMEOUT_S
        )
    except KubectlError:
        # kubectl also fails if they end before it looks.
        if pods := kubectl.list_objects(["pods"], select(name, TRAINER)):
            again = (
                f"`{_format_own_command('delete', name, kubectl)}` again removes the network policy once they are gone"
            )
            what = f"{name}: pods have not ended within {timeout_s} s: {', '.join(pods)}"
            raise Stop(what, f"is their node down? {again}") from None


def _report_missing(name: str, kubectl: Kubectl) -> Stop:
    where = f"namespace {kubectl.namespace}" if kubectl.namespace else "the current namespace"
    command = kubectl.format("get", "jobs", "--all-namespaces", "-l", "app.kubernetes.io/managed-by=muster")
    return Stop(f"{name}: no such job in {where}", f"`{command}` lists those of all namespaces", BAD_INPUT)


def _list_resources(kubectl: Kubectl) -> list[str]:
    """Return the kinds of objects that hold pods of a job; a deleted JobSet deletes its Job itself."""
    return [*([JOBSET_RESOURCE] if kubectl.has_resource(JOBSET_RESOURCE) else []), JOB_RESOURCE]


def _list_next_steps(job: TrainingJob, kubectl: Kubectl) -> list[tuple[str, str]]:
    trainer, tensorboard = select(job.name, TRAINER), f"service/{name_tensorboard(job.name)}"
    # By default, kubectl refuses to follow more than five pods.
    follow = ("--follow", "--tail=-1", "--prefix", f"--max-log-requests={job.nodes}")
    steps = [
        (kubectl.format("get", "pods", "-l", trainer, "--watch"), "see where the pods run"),
        (kubectl.format("logs", "-l", trainer, *follow), "follow the logs"),
    ]
    if job.tensorboard_image:
        steps.append(
            (
                kubectl.format("port-forward", tensorboard, str(TENSORBOARD_PORT)),
                f"TensorBoard at http://localhost:{TENSORBOARD_PORT}",
            )
        )
    return [*steps, (_format_own_command("delete", job.name, kubectl), "save, end, and keep the checkpoints")]


def _format_own_command(command: str, name: str, kubectl: Kubectl) -> str:
    return " ".join([".venv/bin/muster", "kubernetes", command, name, *kubectl.options])


def _explain(error: KubectlError) -> Stop:
    if isinstance(error, KubectlMissing):
        return Stop(
            str(error), "install it (https://kubernetes.io/docs/tasks/tools/), or pipe `render` to it elsewhere"
        )
    if any(text in str(error) for text in _NO_ANSWER):
        fix = "choose one with --context; `kubectl config get-contexts` lists them"
        return Stop(f"kubectl has no cluster, or it does not answer: {error}", fix)
    return Stop(f"kubectl: {error}", "`kubectl cluster-info` shows whether the cluster answers")
