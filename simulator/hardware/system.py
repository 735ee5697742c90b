"""The machines, as rates: what a GPU computes and moves, and how GPUs are joined."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.hardware.curves import ExchangeCurve, ProductCurve


@dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str
    """As the catalog calls it: h100."""
    peak_tflops: dict[str, float] = field(hash=False)
    """Dense, by dtype, off the data sheet."""
    memory_gb: float
    memory_gb_s: float
    multiprocessors: int
    watts: float
    generation: str = ""
    """volta, turing, ampere, ada, hopper, blackwell: decides what NCCL can do on it."""
    reached: float = 0.8
    """Share of the peak that the best matmul shape reaches."""
    products: ProductCurve | None = None
    """Matrix products as measured on it; None goes by the data sheet."""
    launches_ahead: bool = True
    """Works beside the host that launches; a CPU does one after the other."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Rates are of one direction, in GB (1e9 bytes) per second, off the data sheet."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int
    intra_gb_s: float
    """Of one GPU's links inside its domain."""
    inter_gb_s: float
    """Of one node's network cards together; 0 on one node."""
    nvlink_domain: int = 0
    """GPUs joined by NVLink; 0 is those of a node."""
    network: str = "ethernet"
    """efa, or a network of data/collective_constants.yaml: decides latencies and the share of the rate reached."""
    host_gb_s: float = 25.0
    """Between a GPU and its host."""
    price_per_hour: dict[str, float] = field(default_factory=dict, hash=False)
    """Of one node in USD, by how it is bought: on_demand, spot, ..."""
    cards: int = 0
    """Network cards of a node; 0 is one for each GPU."""
    network_us: float = 0.0
    """Of one message between nodes, where it was measured; 0 is what the kind of network is known for."""
    exchanges: ExchangeCurve | None = None
    """Collectives as measured on it; None goes by the links."""

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes
