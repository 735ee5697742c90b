"""Run the plan of a pipeline: the engine behind `parallel.pipeline` with `parallel.engine=muster`.

Each rank holds some consecutive layers, a stage. It receives hidden states from the rank before, runs its layers, and
sends the result on; the last rank computes the loss. Then gradients take the same way back. With only one batch, all
ranks but one would always wait. So the batch is cut into micro-batches, and ranks work on different ones at a time.
The schedules in this folder differ in the order, and thus in the time for which ranks are idle, the bubble, and in the
number of micro-batches whose activations a rank stores.

A step executes this rank's list of actions (`actions.py`):

1. A forward pass waits for its message, detaches it from the graph of the rank before, and runs the stage.
2. A backward pass waits for the gradient of the outputs and runs autograd up to the inputs of the stage, whose `grad`
   is the next message. Gradients of weights add up over micro-batches, in the order of the plan.
3. Neighbouring messages start together, in the background. A rank waits for what it received only when it needs it.

Each schedule adds up micro-batches in the order of their numbers, so all of them have the same bits, and a rank's
gradients are those of the same micro-batches on one rank. The norm of all gradients and the loss are sums over the
ranks at the end of a step.

Before the first step, ranks compare what they are about to run. A rank that ends or hangs makes its
neighbours fail with an error that names it, at the latest after the timeout of the process group.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trainer.collectives.exchange import Messenger, Request
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.engines.pipeline.actions import MESSAGES, SENDS, Action, PipelineShape, find_peer
from trainer.engines.pipeline.plan import make_plan
from trainer.engines.pipeline.rehearsal import list_needs
from trainer.engines.pipeline.split_backward import Branches, differentiate_inputs
from trainer.engines.pipeline.stage_gradients import prepare_stage
from trainer.json_exchange import gather_bytes
from trainer.parallel.engine import Batch, LossFunction, run_model, run_objective, split_batch
from trainer.parallel.staged_engine import StagedEngine
from trainer.parallel.stages import check_micro_batches

_SENDS_IN_FLIGHT = 4
"""Messages that a rank has started to send and not waited for, whose tensors it must store."""
Key = tuple[int, int]
"""The numbers of a stage and of a micro-batch."""


class PipelineEngine(StagedEngine):
    """The engine that runs muster's own schedules."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stages = dict(zip(self._indices, self.modules, strict=True))
        self._gradients = {
            index: prepare_stage(stage, self._recipe, self.mesh) for index, stage in self._stages.items()
        }
        self._messenger = Messenger(self.mesh.group("pipeline"), self.mesh.device, "the pipeline")
        self._compared: set[tuple[int, ...]] = set()
        self.around_action: Callable[[Action], AbstractContextManager[None]] = _do_nothing
        """Returns the context in which a pass runs, after its message has arrived, for those who measure."""

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        pieces = split_batch(batch, micro)
        self._compare_shapes((len(pieces), *pieces[0]["inputs"].shape))
        parallel = self._recipe.parallel
        check_micro_batches(parallel, len(pieces))
        shape = PipelineShape(parallel.pipeline, len(pieces), len(self._indices))
        actions = make_plan(parallel.schedule, shape)[self.mesh.coordinate("pipeline")]
        step = _Step(self, shape, pieces, loss_fn, scale)
        for gradients in self._gradients.values():
            gradients.begin_step()
        step.run(actions)
        for gradients in self._gradients.values():
            gradients.finish()
        total = torch.stack(step.losses).sum() if step.losses else torch.zeros((), device=self.mesh.device)
        return self.mesh.sum_over(total, "pipeline")

    def _compare_shapes(self, shape: tuple[int, ...]) -> None:
        """Raise ConfigError on all ranks of a pipeline if they are about to run batches of different shapes."""
        if shape in self._compared:
            return
        group = self.mesh.group("pipeline")
        texts = [part.decode() for part in gather_bytes(_describe(shape).encode(), group, self.mesh.device)]
        rank = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if rank is not None:
            message = f"stages run different batches: stage 0 has {texts[0]}, where stage {rank} has {texts[rank]}"
            raise ConfigError([ConfigProblem("batch", message, "give all ranks of a pipeline the same batch")])
        self._compared.add(shape)


class _Step:
    """The tensors of a step: those on their way, and those that backward passes need."""

    def __init__(
        self,
        engine: PipelineEngine,
        shape: PipelineShape,
        pieces: list[Batch],
        loss_fn: LossFunction,
        scale: torch.Tensor | None,
    ) -> None:
        self.losses: list[torch.Tensor] = []
        self._engine, self._shape = engine, shape
        self._pieces = pieces
        self._loss_fn, self._scale = loss_fn, scale
        self._received: dict[Action, tuple[torch.Tensor, list[Request]]] = {}
        self._sent: deque[tuple[torch.Tensor, list[Request]]] = deque()
        self._inputs: dict[Key, torch.Tensor] = {}
        self._outputs: dict[Key, torch.Tensor] = {}
        self._branches: dict[Key, Branches] = {}
        self._backwards: Counter[int] = Counter()
        """Passes of each stage that have added to the gradients of weights."""

    def run(self, actions: Sequence[Action]) -> None:
        """Execute actions in order; messages that follow each other start together."""
        started: list[Action] = []
        for action in actions:
            if action.kind in MESSAGES:
                started.append(action)
                continue
            self._start(started)
            started = []
            received = self._take_message(action)
            with self._engine.around_action(action):
                getattr(self, f"_run_{action.kind}")(action.stage, action.micro_batch, received)
        self._start(started)
        while self._sent:
            self._finish_oldest()

    def _run_forward(self, stage: int, number: int, hidden: torch.Tensor | None) -> None:
        engine, piece = self._engine, self._pieces[number]
        module = engine._stages[stage]
        if hidden is not None:
            self._inputs[stage, number] = hidden.requires_grad_()
            piece = {**piece, "inputs": hidden}
        if stage < engine._last:
            self._outputs[stage, number] = run_model(module, piece)
            return
        loss = run_objective(module, piece, self._loss_fn, engine._find_objective(self._loss_fn)) / len(self._pieces)
        self.losses.append(loss.detach())
        self._outputs[stage, number] = loss if self._scale is None else loss * self._scale

    def _run_backward(self, stage: int, number: int, gradient: torch.Tensor | None) -> None:
        is_last = self._begin_backward(stage)
        output = self._outputs.pop((stage, number))
        # All weights of the first stage may be frozen.
        if output.requires_grad:
            torch.autograd.backward(output, gradient)
        self._end_backward(stage, is_last=is_last)

    def _run_backward_input(self, stage: int, number: int, gradient: torch.Tensor | None) -> None:
        output = self._outputs.pop((stage, number))
        # If nothing can be deferred, weights get their gradients here.
        self._engine._gradients[stage].begin_backward(is_last=False)
        self._branches[stage, number] = differentiate_inputs(output, gradient, self._inputs[stage, number])

    def _run_backward_weight(self, stage: int, number: int, _: torch.Tensor | None) -> None:
        is_last = self._begin_backward(stage)
        self._branches.pop((stage, number)).differentiate_weights()
        self._end_backward(stage, is_last=is_last)

    def _begin_backward(self, stage: int) -> bool:
        self._backwards[stage] += 1
        is_last = self._backwards[stage] == len(self._pieces)
        self._engine._gradients[stage].begin_backward(is_last=is_last)
        return is_last

    def _end_backward(self, stage: int, *, is_last: bool) -> None:
        if is_last:
            self._engine._gradients[stage].end_last_backward()

    def _start(self, actions: list[Action]) -> None:
        """Start messages; wait for old ones if too many are on their way."""
        engine = self._engine
        tensors = [self._find_tensor(action) for action in actions]
        peers = [find_peer(action, engine.mesh.layout.pipeline) for action in actions]
        messages = [
            (action.kind in SENDS, tensor, peer) for action, tensor, peer in zip(actions, tensors, peers, strict=True)
        ]
        requests = engine._messenger.start(messages)
        for index, (action, tensor) in enumerate(zip(actions, tensors, strict=True)):
            # NCCL may return one request for all messages.
            own = [requests[index]] if len(requests) == len(actions) else requests
            if action.kind in SENDS:
                self._sent.append((tensor, own))
            else:
                self._received[action] = (tensor, own)
        while len(self._sent) > _SENDS_IN_FLIGHT:
            self._finish_oldest()

    def _find_tensor(self, action: Action) -> torch.Tensor:
        """Return the tensor to send, or memory for the one to receive."""
        key = (action.stage, action.micro_batch)
        if action.kind == "send_output":
            return self._outputs[key].detach()
        if action.kind == "send_gradient":
            gradient: Any = self._inputs.pop(key).grad
            return gradient.contiguous()
        engine = self._engine
        shape = tuple(self._pieces[action.micro_batch]["inputs"].shape)
        return torch.empty_like(engine._describe_hidden(shape), device=engine.mesh.device, requires_grad=False)

    def _take_message(self, action: Action) -> torch.Tensor | None:
        """Wait for the message that an action needs, and return it."""
        needs = [need for need in list_needs(action, self._shape) if need.kind in MESSAGES]
        if not needs:
            return None
        tensor, requests = self._received.pop(needs[0])
        self._engine._messenger.finish(requests)
        return tensor

    def _finish_oldest(self) -> None:
        _, requests = self._sent.popleft()
        self._engine._messenger.finish(requests)


def _do_nothing(_action: Action) -> AbstractContextManager[None]:
    return nullcontext()


def _describe(shape: tuple[int, ...]) -> str:
    count, *sizes = shape
    return f"{count} micro-batches of shape {sizes}"
