"""How long GPUs take to exchange an array, and which way of doing it NCCL would choose."""

from simulator.collectives.group import Group, Op
from simulator.collectives.timing import choice, time_s

__all__ = ["Group", "Op", "choice", "time_s"]
