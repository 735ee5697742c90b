"""Our own ways of spreading a model over ranks, to read and to change: `parallel.engine=muster`.

Each starts from one file whose docstring explains the algorithm: `data_parallel`, which uses `reduction`, and
`sharded`, which uses `block`, `block_gradients` and `flat_layout`.

They use torch.distributed's collectives and autograd's hooks, but none of torch's wrappers, such as DDP.
"""
