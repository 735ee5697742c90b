"""Check that a job used the fabric of its nodes: the network NCCL chose, the bytes devices sent, the bandwidth."""
