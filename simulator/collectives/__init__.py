"""Predict how long GPUs take for a collective, and which algorithm and protocol NCCL chooses."""

from simulator.collectives.algorithms import choose_algorithm, collective_time_s
from simulator.collectives.group import Group, Op

__all__ = ["Group", "Op", "choose_algorithm", "collective_time_s"]
