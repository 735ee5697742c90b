"""How long GPUs take to exchange an array, and which way of doing it NCCL would choose."""

from simulator.collectives.algorithms import choose_algorithm, collective_time_s
from simulator.collectives.group import Group, Op

__all__ = ["Group", "Op", "choose_algorithm", "collective_time_s"]
