"""Every setting of a run with its type, default and meaning, together with communication.py and models.py.

These three files are the only list of settings: the help text, the documentation and the checks are derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.communication import CommunicationConfig
from trainer.config.models import ModelConfig
from trainer.config.setting import setting

Precision = Literal["fp32", "bf16", "fp16"]
MomentFormat = Literal["fp32", "bf16", "int8"]
StoredFormat = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Settings of LoRA: which layers get a low-rank change, and how large it is."""

    rank: int = setting("rank of the change; 0 trains all weights instead", 0, low=0)
    alpha: float = setting("the change is multiplied by alpha / rank", 16.0, low=0)
    layers: tuple[str, ...] = setting(
        "linear layers to change, also of experts, by the end of their name; * stands for any text",
        ("attention.*", "ffn.*"),
    )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of the training data."""

    kind: Literal["synthetic", "tokens", "images"] = setting("source of the samples", "synthetic")
    path: str = setting(
        "folder of token shards or images; token shards may also be at s3://BUCKET/FOLDER or https://SERVER/FOLDER",
        "",
        is_path=True,
    )
    mixture: tuple[str, ...] = setting(
        "folders of token shards to mix, as PATH=WEIGHT (such as [~/web=0.7, ~/code=0.3]), instead of data.path",
        (),
        is_path=True,
    )
    samples: int = setting("samples per epoch of synthetic data", 65536, low=1)
    seq_len: int = setting("tokens per sample; 0 uses the model's seq_len", 0, low=0)
    documents: Literal["joined", "separate", "packed"] = setting(
        "joined: samples are windows of all text, and tokens see earlier documents; separate: attention, positions and "
        "loss stop where a document ends; packed: also, samples are filled with whole documents and padding",
        "joined",
    )
    shuffle_shards: int = setting(
        "token shards that are shuffled together; a run then reads a few shards at a time; 0 shuffles all samples",
        0,
        low=0,
    )
    cache: str = setting(
        "folder for copies of remote shards, on a disk of the node; empty uses /local if it is a disk, else /tmp",
        "",
        is_path=True,
    )
    cache_gb: float = setting("size above which copies of remote shards are removed; 0 keeps all", 0.0, low=0)
    workers: int = setting("threads that read and decode batches in advance", 2, low=0, high=64)
    ahead: int = setting("batches to prepare in advance", 2, low=1, high=64)


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Settings of the batch."""

    size: int = setting("samples per optimizer step, summed over all ranks; independent of the world size", 32, low=1)
    micro: int | Literal["auto"] = setting(
        "samples per forward pass of one rank; gradients are accumulated up to batch.size", "auto", low=1
    )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Settings of the training objective."""

    chunk_tokens: int = setting(
        "language models: tokens whose logits are in memory at a time, on each rank; 0 means a whole micro-batch",
        4096,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer."""

    name: Literal["adamw", "muon", "sgd"] = setting(
        "update rule; muon orthogonalises the updates of matrices and leaves all other parameters to AdamW", "adamw"
    )
    lr: float = setting("peak learning rate", 3e-4, low=0)
    weights: StoredFormat = setting(
        "format in which weights are stored, also frozen ones; bf16 needs precision=bf16 and rounds updates up or "
        "down at random, so that small ones are not lost",
        "fp32",
    )
    master: bool = setting(
        "bf16 weights: keep fp32 copies of trained weights in the optimizer, update those, and round to the nearest",
        False,
    )
    gradients: StoredFormat = setting(
        "format in which gradients are stored and summed over micro-batches; under ddp, that of the weights", "fp32"
    )
    moments: MomentFormat = setting(
        "format of the optimizer's moments; int8 shares a scale between up to 256 values of a row and keeps vectors "
        "in fp32",
        "fp32",
    )
    clip_norm: float = setting("maximum global gradient norm; 0 disables clipping", 1.0, low=0)
    beta1: float = setting("AdamW: decay of the first moment", 0.9, low=0, high=1)
    beta2: float = setting("AdamW: decay of the second moment", 0.95, low=0, high=1)
    eps: float = setting("AdamW: epsilon added to the denominator", 1e-8, low=0)
    momentum: float = setting("SGD: momentum", 0.9, low=0, high=1)
    muon_momentum: float = setting("Muon: momentum", 0.95, low=0, high=1)
    muon_exclude: tuple[str, ...] = setting(
        "Muon: name patterns (* and ?) of matrices that AdamW updates; embeddings always are",
        ("*head.weight", "*classifier.weight"),
    )
    weight_decay: float = setting("weight decay of matrices; norms and biases are not decayed", 0.1, low=0)
    decay_groups: tuple[str, ...] = setting(
        "weight decay of parameters by name, as PATTERN=DECAY (such as embed.*=0); the first pattern that matches wins",
        (),
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Settings of the learning-rate schedule."""

    kind: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = setting(
        "rate after the warm-up: constant, a linear or cosine decay to the floor, wsd (warm-up, stable, decay), "
        "or inverse_sqrt (the peak times the square root of warmup / step)",
        "cosine",
    )
    warmup: int = setting("steps of linear warm-up from zero to the peak", 0, low=0)
    floor: float = setting(
        "learning rate of the last step, as a fraction of the peak; inverse_sqrt: the lowest one", 0.1, low=0, high=1
    )
    decay_share: float = setting(
        "wsd: share of the run's steps, at its end, in which the rate decays", 0.1, low=0, high=1
    )
    decay_shape: Literal["linear", "cosine", "sqrt"] = setting(
        "wsd: shape of the decay; sqrt falls as 1 - the square root of the progress", "sqrt"
    )


@dataclass(frozen=True, kw_only=True)
class Fp8Config:
    """Settings of fp8 products in the linear layers of a model."""

    scaling: Literal["none", "tensor", "row", "delayed"] = setting(
        "none computes in `precision`; tensor rounds operands to fp8 with one scale each, row with one for each of "
        "their rows, which is more exact and slower; delayed is tensor with scales from the last 16 steps, and faster",
        "none",
    )
    head: bool = setting(
        "also compute the head of a language model in fp8 while training, with one scale for each operand, which is "
        "less exact than bf16",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Settings of parallelism: how ranks share the batch and the model."""

    strategy: Literal["auto", "single", "ddp", "fsdp", "hsdp"] = setting("data-parallel strategy", "auto")
    engine: Literal["torch", "muster"] = setting(
        "code that runs the strategy: torch's wrappers, or muster's own in trainer/engines for ddp, fsdp, hsdp, "
        "pipelines, and tensor with single",
        "torch",
    )
    zero: Literal[1, 2, 3] = setting("fsdp, hsdp: 1 shards the optimizer state, 2 also gradients, 3 also parameters", 3)
    shard: int = setting("hsdp: ranks that share one copy of the model; 0 means the ranks of a node", 0, low=0)
    tensor: int = setting("tensor parallelism: ranks that split each layer", 1, low=1)
    context: int = setting("context parallelism: ranks that split each sequence, 1 for none", 1, low=1)
    expert: int = setting(
        "expert parallelism: data-parallel ranks that share the experts of each layer; must divide both", 1, low=1
    )
    pipeline: int = setting("pipeline parallelism: ranks that hold consecutive layers", 1, low=1)
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = setting(
        "pipeline: order of the micro-batches; zero_bubble needs engine=muster", "1f1b"
    )
    virtual_stages: int = setting("interleaved pipeline: stages per rank", 2, low=2)
    bucket_mb: int = setting("ddp: size of the gradient buckets, in MB", 25, low=1)
    bucket_view: bool = setting("ddp: keep gradients in the buckets, which saves a copy", True)
    static_graph: bool = setting("ddp: assume that every step uses the same parameters", False)
    find_unused_parameters: bool = setting(
        "ddp: allow weights that the loss of a step does not depend on, which are an error otherwise; "
        "torch's engine searches the graph of each step for them",
        False,
    )
    prefetch: int = setting("fsdp: layers to gather in advance", 1, low=0, high=16)
    check_blocks: bool = setting(
        "fsdp, hsdp with engine=muster: compare in every step which layers the ranks gather and reduce, and name those "
        "that differ; otherwise only in the first step of a run",
        False,
    )
    offload: bool = setting("fsdp: keep parameters, gradients and optimizer state in host memory", False)
    recompute: Literal["none", "selective", "full"] = setting(
        "activations to recompute in the backward pass instead of storing them", "none"
    )
    accumulate: Literal["auto", "sync", "defer"] = setting(
        "gradient accumulation: sync reduces after every micro-batch; "
        "defer keeps whole gradients and reduces once per step",
        "auto",
    )
    reduce: Literal["fp32", "bf16"] = setting(
        "format in which ranks sum gradients; bf16 halves the traffic and keeps 8 bits of each summand; "
        "micro-batches are summed in optimizer.gradients",
        "fp32",
    )


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Settings of torch.compile."""

    mode: Literal["none", "blocks", "whole"] = setting(
        "what to compile: nothing, each block, or the whole model with its loss", "none"
    )
    backend: str = setting("torch.compile backend", "inductor")
    cuda_graph: bool = setting(
        "on one GPU: record a micro-batch as a CUDA graph and replay it, which saves the time between short kernels; "
        "model and loss must do the same operations in every step",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of the evaluation on samples that are not trained on; there is none without `share` or `path`."""

    every: int = setting("steps between evaluations; the last step is always evaluated", 500, low=1)
    share: float = setting("fraction of the training data to hold out, the end of each shard or class", 0.0, low=0)
    path: str = setting("folder of token shards or images to evaluate on, instead of a share", "", is_path=True)
    samples: int = setting("samples per evaluation, a fixed random choice; 0 uses all", 0, low=0)
    prompts: tuple[str, ...] = setting(
        "texts that the model continues after each evaluation, to read in the report", ()
    )
    prompt_tokens: int = setting("tokens to write after each prompt; each of them takes a forward pass", 32, low=1)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Settings of checkpoints: saving, keeping and resuming."""

    every: int | Literal["never"] = setting(
        "steps between checkpoints; 0 saves only at the end and when the run is asked to stop; never saves nothing, "
        "so the run cannot be resumed",
        500,
        low=0,
    )
    keep: int = setting("number of newest checkpoints to keep", 3, low=1)
    best: Literal["", "loss", "perplexity", "accuracy"] = setting(
        "figure of the evaluation by which the best checkpoint is also kept; empty keeps none", ""
    )
    verify: Literal["full", "size"] = setting(
        "checks when loading: checksums of every byte, or file sizes only", "full"
    )
    asynchronous: bool = setting("continue training while a checkpoint is written", True)
    resume: Literal["auto", "never", "must"] = setting(
        "auto resumes from the newest valid checkpoint in the run folder, if any; must fails if there is none; "
        "never fails if there is one",
        "auto",
    )
    initial: str = setting(
        "weights to start from: a run folder, its checkpoints folder, one checkpoint, or a Hugging Face folder",
        "",
        is_path=True,
    )

    @property
    def interval(self) -> int:
        """Steps between regular checkpoints; 0 if there are none."""
        return 0 if self.every == "never" else self.every


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of the run as a whole: folder, seed and device."""

    folder: str = setting(
        "folder for checkpoints, metrics and reports; {name} is the run's name", "runs/{name}", is_path=True
    )
    seed: int = setting("seed of the weights, the data order and dropout", 1, low=0)
    deterministic: bool = setting(
        "use only bitwise reproducible kernels, even where a GPU has faster ones; an operation without one is an error",
        False,
    )
    join_timeout_s: float = setting("seconds to wait for all ranks to join", 300.0, low=1)
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto uses the GPU of the rank if there is one, else the CPU", "auto"
    )


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """Settings of stopping in time: the job's time limit and signals."""

    margin_s: float = setting(
        "seconds before the job's time limit at which to stop; 0 derives it from step and save times", 0.0, low=0
    )
    save_within_s: float = setting(
        "seconds allowed for the checkpoint when the run ends, together with one that is still being written",
        600.0,
        low=1,
    )
    warning_s: float = setting(
        "seconds between the cluster's warning and the end of the job (sbatch --signal, GraceTime, spot instances); "
        "a Slurm job that needs longer to stop says so; 0 means that there is no warning",
        120.0,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """Settings of the reactions to non-finite updates, loss spikes and nodes that compute wrong results."""

    nonfinite: Literal["skip", "stop", "ignore"] = setting("reaction to an update with a NaN or infinity", "skip")
    max_skips: int = setting("consecutive skipped updates after which the run fails", 20, low=1)
    spike: Literal["ignore", "warn", "rollback", "stop"] = setting("reaction to a loss spike", "warn")
    spike_sigma: float = setting("standard deviations above the window's mean that count as a spike", 6.0, low=1)
    window: int = setting("number of recent losses to compare with", 100, low=10)
    max_rollbacks: int = setting("rollbacks to a checkpoint after which the run fails", 3, low=0)
    replay_every: int = setting(
        "steps between replays, in which each rank repeats a step of another one and compares bits, to find nodes that "
        "compute wrong results; 0 never does",
        0,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    """Settings of the detection of hangs and stragglers."""

    hang_s: float = setting(
        "seconds without progress before stacks are dumped and the run ends; 0 derives it from step times", 0.0, low=0
    )
    straggler: float = setting("report a rank that is this many times slower than the median", 1.3, low=1)


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Settings of metrics: what is recorded and how often."""

    every: int = setting("steps between progress lines and metrics records", 10, low=1)
    sample_ids: bool = setting("record which samples each rank used in each step (metrics/samples-*.jsonl)", False)
    tensorboard: bool = setting(
        "write TensorBoard event files; the tensorboard package is needed only to view them", True
    )
    wandb: Literal["none", "online", "offline"] = setting(
        "Weights & Biases: online (offline without a key or network), or offline in the run folder; needs wandb", "none"
    )
    mlflow: Literal["none", "online", "offline"] = setting(
        "MLflow: online at MLFLOW_TRACKING_URI (offline without it), or offline in the run folder; needs mlflow", "none"
    )
    project: str = setting("project in Weights & Biases, experiment in MLflow", "muster")
    profile_every: int = setting(
        "steps between profiled steps (the tenth step after a start is profiled too); 0 disables profiling", 200, low=0
    )
    nvml: bool = setting("record GPU utilisation, power and clocks if nvidia-ml-py is installed", True)
    peak_tflops: float = setting(
        "peak matmul rate for MFU, in TFLOP/s; 0 uses the data sheet of the GPU, or measures the CPU", 0.0, low=0
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    name: str = setting("name of the run")
    steps: int = setting("optimizer steps", 1000, low=1)
    model: ModelConfig = setting("the network, by its family")
    lora: LoraConfig = setting("low-rank fine-tuning", LoraConfig)
    data: DataConfig = setting("training data", DataConfig)
    batch: BatchConfig = setting("batch and micro-batch", BatchConfig)
    loss: LossConfig = setting("training objective", LossConfig)
    optimizer: OptimizerConfig = setting("update rule and its hyperparameters", OptimizerConfig)
    schedule: ScheduleConfig = setting("learning-rate schedule", ScheduleConfig)
    precision: Precision = setting("precision of matrix products; optimizer.weights is that of stored weights", "fp32")
    fp8: Fp8Config = setting("fp8 products of linear layers", Fp8Config)
    parallel: ParallelConfig = setting("how ranks share the batch and the model", ParallelConfig)
    communication: CommunicationConfig = setting("how gradients travel between ranks", CommunicationConfig)
    compile: CompileConfig = setting("torch.compile", CompileConfig)
    evaluation: EvaluationConfig = setting("evaluation on held-out samples", EvaluationConfig)
    checkpoint: CheckpointConfig = setting("saving and resuming", CheckpointConfig)
    run: RunConfig = setting("folder, seed, device", RunConfig)
    stop: StopConfig = setting("time limits and signals", StopConfig)
    health: HealthConfig = setting("reactions to an unhealthy loss", HealthConfig)
    watchdog: WatchdogConfig = setting("hangs and stragglers", WatchdogConfig)
    metrics: MetricsConfig = setting("what is recorded and how often", MetricsConfig)
