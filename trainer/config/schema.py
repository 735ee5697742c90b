"""Every setting of a run, its default, its meaning. The only list of fields: help, docs and checks come from it."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

Family = Literal["llama", "gpt2", "resnet", "mlp"]
Precision = Literal["fp32", "bf16", "fp16"]


def item(doc: str, default: Any = MISSING, *, low: float | None = None, high: float | None = None) -> Any:
    """A field with its meaning and, for numbers, its bounds (both inclusive)."""
    metadata = {"doc": doc, "low": low, "high": high}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    family: Literal["llama"] = item("Llama-family decoder: RMSNorm, rotary positions, grouped queries, SwiGLU", "llama")
    vocab_size: int = item("tokens in the vocabulary", 128256, low=2)
    dim: int = item("width of the residual stream", 2048, low=2)
    layers: int = item("decoder blocks", 16, low=1)
    heads: int = item("query heads; divides dim", 32, low=1)
    kv_heads: int = item("key and value heads; divides heads", 8, low=1)
    ffn: int = item("width inside the feed-forward part", 8192, low=1)
    seq_len: int = item("longest sequence", 4096, low=1)
    rope_theta: float = item("base of the rotary frequencies", 500000.0, low=1)
    norm_eps: float = item("epsilon of RMSNorm", 1e-5, low=0)
    tie_embeddings: bool = item("the head uses the embedding's weights", False)


@dataclass(frozen=True, kw_only=True)
class Gpt2Config:
    family: Literal["gpt2"] = item("GPT-2 decoder: LayerNorm, learned positions, GELU", "gpt2")
    vocab_size: int = item("tokens in the vocabulary (50257 padded to a multiple of 64)", 50304, low=2)
    dim: int = item("width of the residual stream", 768, low=2)
    layers: int = item("decoder blocks", 12, low=1)
    heads: int = item("attention heads; divides dim", 12, low=1)
    seq_len: int = item("longest sequence", 1024, low=1)
    dropout: float = item("share of activations dropped in training", 0.0, low=0, high=0.9)
    norm_eps: float = item("epsilon of LayerNorm", 1e-5, low=0)
    tie_embeddings: bool = item("the head uses the embedding's weights", True)


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    family: Literal["resnet"] = item("residual convolutional network", "resnet")
    depth: Literal[18, 34, 50, 101, 152] = item("layers, as in the paper", 50)
    width: int = item("channels of the first stage", 64, low=4)
    classes: int = item("classes to tell apart", 1000, low=2)
    image_size: int = item("height and width of an image", 224, low=8)


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    family: Literal["mlp"] = item("classifier of fully connected layers", "mlp")
    inputs: int = item("numbers per sample", 784, low=1)
    hidden: tuple[int, ...] = item("widths of the hidden layers", (512, 512))
    classes: int = item("classes to tell apart", 10, low=2)


ModelConfig = LlamaConfig | Gpt2Config | ResNetConfig | MlpConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    kind: Literal["synthetic", "tokens", "images"] = item("where samples come from", "synthetic")
    path: str = item("folder of token shards or of images; unused for synthetic data", "")
    samples: int = item("synthetic data: samples in an epoch", 65536, low=1)
    seq_len: int = item("tokens per sample; 0 is the model's own", 0, low=0)
    workers: int = item("threads that read and decode ahead", 2, low=0, high=64)
    ahead: int = item("batches kept ready", 2, low=1, high=64)


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    size: int = item("samples in one optimizer step, over all ranks: the same for every world size", 32, low=1)
    micro: int | Literal["auto"] = item("samples in a forward pass of one rank; the rest is accumulated", "auto", low=1)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw", "sgd"] = item("update rule", "adamw")
    lr: float = item("peak learning rate", 3e-4, low=0)
    beta1: float = item("AdamW: decay of the first moment", 0.9, low=0, high=1)
    beta2: float = item("AdamW: decay of the second moment", 0.95, low=0, high=1)
    eps: float = item("AdamW: added to the denominator", 1e-8, low=0)
    momentum: float = item("SGD: momentum", 0.9, low=0, high=1)
    weight_decay: float = item("decay of matrices; vectors (norms, biases) have none", 0.1, low=0)
    clip_norm: float = item("largest global gradient norm; 0 clips nothing", 1.0, low=0)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    kind: Literal["constant", "linear", "cosine"] = item("how the rate falls after the warm-up", "cosine")
    warmup: int = item("steps from zero to the peak", 0, low=0)
    floor: float = item("rate at the last step, as a share of the peak", 0.1, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    strategy: Literal["auto", "single", "ddp", "fsdp", "hsdp"] = item("how the batch is spread over ranks", "auto")
    zero: Literal[1, 2, 3] = item("fsdp, hsdp: 1 shards optimizer state, 2 gradients too, 3 parameters too", 3)
    shard: int = item("hsdp: ranks that share one copy of the model; 0 is the ranks of one node", 0, low=0)
    tensor: int = item("ranks that split each layer", 1, low=1)
    pipeline: int = item("ranks that hold consecutive layers", 1, low=1)
    schedule: Literal["gpipe", "1f1b", "interleaved"] = item("pipeline: order of micro-batches", "1f1b")
    virtual_stages: int = item("interleaved: stages on each rank", 2, low=2)
    bucket_mb: int = item("ddp: gradients sent together", 25, low=1)
    bucket_view: bool = item("ddp: gradients live in the buckets, saving one copy", True)
    static_graph: bool = item("ddp: the same parameters are used in every step", False)
    prefetch: int = item("fsdp: layers gathered ahead", 1, low=0, high=16)
    offload: bool = item("fsdp: parameters, gradients and optimizer state live in host memory", False)
    recompute: Literal["none", "selective", "full"] = item("activations computed again in backward", "none")
    accumulate: Literal["auto", "sync", "defer"] = item(
        "micro-batches before the last: sync reduces each, defer keeps whole gradients and reduces once", "auto"
    )


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    mode: Literal["none", "blocks", "whole"] = item("nothing, each block, or the whole model with its loss", "none")
    backend: str = item("torch.compile backend", "inductor")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int = item("steps between two checkpoints; 0 saves only at the end and when told to stop", 500, low=0)
    keep: int = item("newest checkpoints kept", 3, low=1)
    best: str = item("metric whose best checkpoint is kept too, such as loss; empty keeps none", "")
    verify: Literal["full", "size"] = item("what a load checks: checksums of every byte, or sizes", "full")
    asynchronous: bool = item("training goes on while a checkpoint is written", True)
    resume: Literal["auto", "never", "must"] = item("take up the newest good checkpoint of the run's folder", "auto")
    initial: str = item("weights to start from: a run, its checkpoints, one of them, or a Hugging Face folder", "")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    folder: str = item("where checkpoints, metrics and reports go; {name} is the run's name", "runs/{name}")
    seed: int = item("of weights, data order and dropout", 1, low=0)
    deterministic: bool = item("only kernels that repeat bit for bit, where a GPU has faster ones that do not", False)
    join_timeout_s: float = item("time for all ranks to come", 300.0, low=1)
    device: Literal["auto", "cpu", "cuda"] = item("auto is the GPU that works, else the CPU", "auto")


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    margin_s: float = item("stop this long before the job's time limit; 0 computes it from saves and steps", 0.0, low=0)
    save_within_s: float = item("give a checkpoint this long when told to stop", 600.0, low=1)


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    nonfinite: Literal["skip", "stop", "ignore"] = item("an update with a NaN or infinity in it", "skip")
    max_skips: int = item("skipped updates in a row before the run is broken", 20, low=1)
    spike: Literal["ignore", "warn", "rollback", "stop"] = item("a loss far above those before", "warn")
    spike_sigma: float = item("standard deviations above the mean of the window that make a spike", 6.0, low=1)
    window: int = item("losses remembered", 100, low=10)
    max_rollbacks: int = item("returns to a checkpoint before the run is broken", 3, low=0)


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    hang_s: float = item("silence until stacks are dumped and the run ends; 0 computes it from step times", 0.0, low=0)
    straggler: float = item("a rank this many times slower than the median is reported", 1.3, low=1)


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    every: int = item("steps between two lines of progress and metrics", 10, low=1)
    sample_ids: bool = item("write down which samples each step of each rank saw (metrics/samples-*.jsonl)", False)
    tensorboard: bool = item("write TensorBoard events; the package is needed to look at them, not to write", True)
    profile_every: int = item("steps between two profiled ones (and the tenth of a start); 0 is never", 200, low=0)
    nvml: bool = item("GPU utilisation, power and clocks, where nvidia-ml-py is present", True)
    peak_tflops: float = item("matmul rate that utilisation is relative to; 0 looks the device up", 0.0, low=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str = item("of the run")
    steps: int = item("optimizer steps", 1000, low=1)
    model: ModelConfig = item("the network, by its family")
    data: DataConfig = item("samples", DataConfig)
    batch: BatchConfig = item("samples per step", BatchConfig)
    optimizer: OptimizerConfig = item("update rule", OptimizerConfig)
    schedule: ScheduleConfig = item("learning rate over time", ScheduleConfig)
    precision: Precision = item("of matrix products; weights and their updates stay fp32", "fp32")
    parallel: ParallelConfig = item("how the work is spread over ranks", ParallelConfig)
    compile: CompileConfig = item("torch.compile", CompileConfig)
    checkpoint: CheckpointConfig = item("saving and resuming", CheckpointConfig)
    run: RunConfig = item("folder, seed, device", RunConfig)
    stop: StopConfig = item("time limits and signals", StopConfig)
    health: HealthConfig = item("what an unhealthy loss leads to", HealthConfig)
    watchdog: WatchdogConfig = item("hangs and stragglers", WatchdogConfig)
    metrics: MetricsConfig = item("what is measured and how often", MetricsConfig)
