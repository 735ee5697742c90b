"""Our own ways of spreading a model over ranks, each in one file to read and to change: `parallel.engine=muster`.

They use torch.distributed's collectives and autograd's hooks, but none of torch's wrappers, such as DDP.
"""
