"""The networks, written to be read; parallelism is applied from outside, in trainer/parallel."""
