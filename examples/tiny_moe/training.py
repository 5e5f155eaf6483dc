"""The training loop: one process of one or of many."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .model import TinyMoe, loss_of
from .size import Size
from .text import Text

Gradients = dict[str, torch.Tensor]
Sum = Callable[[list[torch.Tensor]], None]
"""Replaces each tensor by its sum over the ranks. Collective."""


@dataclass
class Record:
    """What one process saw."""

    losses: list[float] = field(default_factory=list)  # of the whole batch
    routes: list[torch.Tensor] = field(default_factory=list)  # a step [layers, B, S, K] of its own sequences
    gradients: dict[int, Gradients] = field(default_factory=dict)  # of the first and of the last step, by step
    parameters: dict[int, Gradients] = field(default_factory=dict)  # before those steps
    seconds: float = 0


def is_of_an_expert(name: str) -> bool:
    """Such a parameter is on one rank; all others are on each, and equal."""
    return ".experts." in name


def train(model: TinyMoe, size: Size, text: Text, *, steps: int, share: slice, sum_over_ranks: Sum) -> Record:
    """share  the sequences of each batch that are this process's"""
    record = Record()
    common = [value for name, value in model.named_parameters() if not is_of_an_expert(name)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-6)
    started = time.perf_counter()
    for step in range(steps):
        inputs, targets = text.batch(step)
        output = model(inputs[share])
        loss = loss_of(output, targets[share], size.sequences)
        optimizer.zero_grad()
        loss.backward()
        # An expert saw the tokens of all ranks, so its gradient is complete.
        whole = loss.detach()
        sum_over_ranks([whole, *(value.grad for value in common)])
        record.losses.append(whole.item())
        record.routes.append(output.routes.to(torch.int16))
        if step in (0, steps - 1):
            record.parameters[step] = {name: value.detach().clone() for name, value in model.named_parameters()}
            record.gradients[step] = {name: value.grad.clone() for name, value in model.named_parameters()}
        optimizer.step()
    record.seconds = time.perf_counter() - started
    return record
