"""Our own ways of spreading a model over ranks, to read and to change: `parallel.engine=muster`.

Each starts from one file whose docstring explains the algorithm: `data_parallel`, which uses `reduction`, `sharded`,
which uses `block`, `block_gradients` and `flat_layout`, `pipeline.engine`, with a file for each schedule, and
`tensor_parallel`.

They use torch.distributed's messages and collectives and autograd's hooks, but none of torch's wrappers, such as DDP.
"""
