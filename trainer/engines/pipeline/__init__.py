"""Pipeline parallelism from send and receive: consecutive layers on different ranks.

A schedule decides in which order a rank runs its micro-batches: `gpipe`, `one_forward_one_backward`, `interleaved` or
`zero_bubble`, one file each. `actions` turns this order into a plan with messages, `rehearsal` checks a plan without
running it, and `engine` runs it. `split_backward` divides a backward pass into two, and `stage_gradients` averages the
gradients of a stage over data-parallel ranks.
"""
