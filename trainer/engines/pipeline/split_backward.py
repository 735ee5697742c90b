"""Divide a backward pass into the gradient of a stage's inputs and, later, the gradients of its weights.

Autograd's graph leads from the outputs of a stage to its inputs, and branches off to weights on the way: the node of a
matrix product has two edges, of which one leads on to the inputs and the other to a weight, maybe through a cast or a
transpose. A node where such a branch leaves the way to the inputs is a fork here.

1. `differentiate_inputs` asks autograd for the gradient of the inputs only, so no branch is followed. A hook of each
   fork stores the gradient that arrives there.
2. `Branches.differentiate_weights` starts from each fork with the gradient that arrived there, and asks for the
   weights of its branches only. So the way to the inputs is not computed again.

Functions that are written in Python, such as the loss in chunks, compute all of their gradients in one call, and may
change what they have stored. Their weights get their gradients in the first part.

Together they compute what one backward pass does, in the same order of sums. The graph, and with it the activations,
must live until the second part. If two forks lead to the same weight, its gradient would be counted twice: then the
first part computes everything, and nothing is left for the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

Fork = tuple[Any, tuple[torch.Tensor | None, ...], list[torch.Tensor]]
"""A fork, the gradients that arrived at each of its outputs, and the weights of its branches."""


class Branches:
    """The branches to weights of a backward pass whose inputs have their gradient already."""

    def __init__(self, forks: list[Fork]) -> None:
        self._forks = deque(forks)

    def differentiate_weights(self) -> None:
        """Add the gradients of weights to their `grad`; call it once."""
        while self._forks:
            node, arrived, weights = self._forks.popleft()
            pairs = [(GradientEdge(node, number), value) for number, value in enumerate(arrived) if value is not None]
            edges, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(edges, gradients, inputs=weights)


def differentiate_inputs(output: torch.Tensor, gradient: torch.Tensor | None, inputs: torch.Tensor) -> Branches:
    """Add the gradient of a stage's inputs to their `grad`, and return the branches to its weights."""
    goal = get_gradient_edge(inputs).node
    nodes = _sort_nodes(output.grad_fn)
    leads_on: dict[Any, bool] = {}
    for node in reversed(nodes):
        leads_on[node] = node is goal or any(leads_on[later] for later in _list_next(node))
    forks = {node: [later for later in _list_next(node) if not leads_on[later]] for node in nodes if leads_on[node]}
    weights = {node: _list_weights(branches) for node, branches in forks.items() if branches}
    total = [weight for each in weights.values() for weight in each]
    if not leads_on[nodes[0]] or len(total) > len(set(total)):
        torch.autograd.backward(output, gradient)
        return Branches([])
    deferred = [node for node in weights if not isinstance(node, BackwardCFunction)]
    at_once = [weight for node in weights if isinstance(node, BackwardCFunction) for weight in weights[node]]
    arrived: dict[Any, tuple[torch.Tensor | None, ...]] = {}
    hooks = [node.register_prehook(partial(arrived.__setitem__, node)) for node in deferred]
    torch.autograd.backward(output, gradient, retain_graph=True, inputs=[inputs, *at_once])
    for hook in hooks:
        hook.remove()
    return Branches([(node, arrived[node], weights[node]) for node in deferred if node in arrived])


def _list_next(node: Any) -> Iterator[Any]:
    return (later for later, _ in node.next_functions if later is not None)


def _sort_nodes(root: Any) -> list[Any]:
    """Return all nodes of a graph, each one before those that its edges lead to."""
    ordered, seen, stack = [], {root}, [(root, _list_next(root))]
    while stack:
        node, edges = stack[-1]
        following = next((later for later in edges if later not in seen), None)
        if following is None:
            ordered.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, _list_next(following)))
    return ordered[::-1]


def _list_weights(branches: list[Any]) -> list[torch.Tensor]:
    """Return the weights that branches lead to, each one once."""
    nodes = {node: None for branch in branches for node in _sort_nodes(branch)}
    return [node.variable for node in nodes if hasattr(node, "variable")]
