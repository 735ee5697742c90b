"""The subcommands of `muster kubernetes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from infra.engine.stop import BAD_INPUT, Stop
from k8s.job import TrainingJob

kubernetes_app = typer.Typer(no_args_is_help=True, help="Train on a Kubernetes cluster that you have.")

_Name = Annotated[str, typer.Argument(help="Name of the job.")]
_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace; by default the current one.")]
_Context = Annotated[str, typer.Option("--context", help="Context of kubectl; by default the current one.")]


def _add_job_command(name: str, act: Callable[[TrainingJob, str], None], summary: str) -> None:
    """Add a command that takes a training job; both have the same options."""

    def run(
        config: Annotated[str, typer.Argument(help="Preset or YAML file of the trainer.")],
        overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.sub=value.")] = None,
        image: Annotated[str, typer.Option("--image", help="Image of the trainer, built from its Dockerfile.")] = "",
        job_name: Annotated[str, typer.Option("--name", help="Name of the job; by default that of CONFIG.")] = "",
        form: Annotated[
            str, typer.Option("--form", help="`jobset`, or `job` for clusters without JobSet.")
        ] = TrainingJob.form,
        nodes: Annotated[
            int, typer.Option("--nodes", help="Number of nodes, with one pod on each.")
        ] = TrainingJob.nodes,
        gpus: Annotated[int, typer.Option("--gpus", help="GPUs per node, with one rank on each.")] = TrainingJob.gpus,
        gpu_resource: Annotated[
            str, typer.Option("--gpu-resource", help="Resource of the GPUs.")
        ] = TrainingJob.gpu_resource,
        ranks: Annotated[
            int, typer.Option("--ranks", help="Ranks per node without GPUs; by default 1.", show_default=False)
        ] = TrainingJob.ranks,
        cpus: Annotated[str, typer.Option("--cpus", help="CPUs that a pod requests.")] = "",
        memory: Annotated[str, typer.Option("--memory", help="Memory of a pod, such as 64Gi.")] = "",
        rdma: Annotated[
            list[str] | None,
            typer.Option("--rdma", help="RDMA devices per node, as RESOURCE=COUNT, such as vpc.amazonaws.com/efa=32."),
        ] = None,
        claim: Annotated[str, typer.Option("--claim", help="Existing ReadWriteMany claim for runs.")] = "",
        storage: Annotated[str, typer.Option("--storage", help="Create a claim of this size, such as 1Ti.")] = "",
        storage_class: Annotated[str, typer.Option("--storage-class", help="Storage class of that claim.")] = "",
        data_claim: Annotated[str, typer.Option("--data-claim", help="Claim with data, read-only at /data.")] = "",
        topology: Annotated[
            str, typer.Option("--topology", help="Label of nodes; all pods run where its value is the same.")
        ] = "",
        exclusive: Annotated[
            bool, typer.Option("--exclusive", help="Keep other JobSets out of that domain; not with --form job.")
        ] = False,
        node_selector: Annotated[
            list[str] | None, typer.Option("--node-selector", help="Only nodes with this LABEL=VALUE.")
        ] = None,
        toleration: Annotated[
            list[str] | None, typer.Option("--toleration", help="Taint to tolerate, as KEY or KEY=VALUE.")
        ] = None,
        priority_class: Annotated[str, typer.Option("--priority-class", help="Priority class of the pods.")] = "",
        pull_secret: Annotated[str, typer.Option("--pull-secret", help="Secret for the image's registry.")] = "",
        tensorboard_image: Annotated[
            str, typer.Option("--tensorboard-image", help="Also run TensorBoard, from this image.")
        ] = "",
        user: Annotated[
            int, typer.Option("--user", help="User and group id of the pods' processes.")
        ] = TrainingJob.user,
        grace_s: Annotated[
            int, typer.Option("--grace-s", help="Seconds to save and end after an eviction or deletion.")
        ] = TrainingJob.grace_s,
        max_restarts: Annotated[
            int, typer.Option("--max-restarts", help="How often the pods start again after a failure.")
        ] = TrainingJob.max_restarts,
        join_timeout_s: Annotated[
            int, typer.Option("--join-timeout-s", help="Seconds for all pods to start and join.")
        ] = TrainingJob.join_timeout_s,
        namespace: _Namespace = "",
        context: _Context = "",
    ) -> None:
        job = TrainingJob(
            name=job_name,
            image=image,
            arguments=(config, *(overrides or ())),
            form=form,
            namespace=namespace,
            nodes=nodes,
            gpus=gpus,
            gpu_resource=gpu_resource,
            ranks=ranks,
            cpus=cpus,
            memory=memory,
            rdma={resource: _parse_count(resource, count) for resource, count in _split(rdma, "--rdma").items()},
            claim=claim,
            storage=storage,
            storage_class=storage_class,
            data_claim=data_claim,
            topology=topology,
            exclusive=exclusive,
            node_selector=_split(node_selector, "--node-selector"),
            tolerations=tuple(toleration or ()),
            priority_class=priority_class,
            pull_secret=pull_secret,
            tensorboard_image=tensorboard_image,
            user=user,
            grace_s=grace_s,
            max_restarts=max_restarts,
            join_timeout_s=join_timeout_s,
        )
        act(job, context)

    kubernetes_app.command(name, help=summary)(run)


def _split(pairs: list[str] | None, option: str) -> dict[str, str]:
    """Return NAME=VALUE pairs as a dictionary."""
    values = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Stop(f"{option}: {pair!r} is not a pair", "write NAME=VALUE", BAD_INPUT)
        values[key] = value
    return values


def _parse_count(resource: str, count: str) -> int:
    if not count.isdecimal():
        raise Stop(f"--rdma: {resource}={count}: {count!r} is not a number", "write RESOURCE=COUNT", BAD_INPUT)
    return int(count)


def _render(job: TrainingJob, _context: str) -> None:
    from muster.commands.kubernetes import render

    render(job)


def _apply(job: TrainingJob, context: str) -> None:
    from muster.commands.kubernetes import apply

    apply(job, context)


_add_job_command("render", _render, "Print the manifests of a training job, for `kubectl apply -f -`.")
_add_job_command("apply", _apply, "Start a training job with your kubectl.")


@kubernetes_app.command("status")
def kubernetes_status(name: _Name, namespace: _Namespace = "", context: _Context = "") -> None:
    """Show the pods and other objects of a job."""
    from muster.commands.kubernetes import status

    status(name, namespace, context)


@kubernetes_app.command("delete")
def kubernetes_delete(
    name: _Name,
    namespace: _Namespace = "",
    context: _Context = "",
    delete_storage: Annotated[
        bool, typer.Option("--delete-storage", help="Also delete the claim that `--storage` created.")
    ] = False,
) -> None:
    """Save, end and delete a job; its checkpoints stay."""
    from muster.commands.kubernetes import delete

    delete(name, namespace, context, delete_storage=delete_storage)
