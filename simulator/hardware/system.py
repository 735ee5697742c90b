"""Descriptions of a GPU and of a system of nodes, as rates."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.hardware.curves import ExchangeCurve, ProductCurve


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A kind of GPU, or a CPU that takes its place in a measured profile."""

    name: str
    """Name in the catalog, such as h100."""
    peak_tflops: dict[str, float] = field(hash=False)
    """Dense TFLOP/s on the data sheet, by dtype."""
    memory_gb: float
    """GiB, which data sheets write as GB."""
    memory_gb_s: float
    multiprocessors: int
    watts: float
    generation: str = ""
    """volta, turing, ampere, ada, hopper or blackwell: decides which algorithms NCCL has."""
    reached: float = 0.8
    """Share of the peak that the best matrix product reaches."""
    products: ProductCurve | None = None
    """Measured matrix products; None to use the data sheet."""
    launches_ahead: bool = True
    """Whether kernels run while the host launches the next ones; a CPU does one after the other."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Nodes of one kind; rates are per direction in GB/s (1e9 bytes) from the data sheet."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int
    intra_gb_s: float
    """Links of one GPU inside its NVLink or PCIe domain."""
    inter_gb_s: float
    """All network cards of one node together; 0 for a single node."""
    nvlink_domain: int = 0
    """GPUs connected by NVLink; 0 means those of one node."""
    network: str = "ethernet"
    """efa, or a network in data/collective_constants.yaml: decides latency and the reachable share of the rate."""
    host_gb_s: float = 25.0
    """Rate between a GPU and its host."""
    price_per_hour: dict[str, float] = field(default_factory=dict, hash=False)
    """USD per node and hour, by purchase option: on-demand, spot, ..."""
    cards: int = 0
    """Network cards of a node; 0 means one per GPU."""
    network_us: float = 0.0
    """Measured latency of a message between nodes in microseconds; 0 means the default of the kind of network."""
    exchanges: ExchangeCurve | None = None
    """Measured collectives; None to use the model of links and networks."""

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes
