"""Whether both trainings are the same, within what FP32 allows."""

from typing import NamedTuple

import torch

from .experts import DenseExperts
from .model import TinyMoe, loss_of
from .ranks import Traffic
from .size import Size
from .text import Text
from .training import Gradients, Record, is_of_an_expert

EARLY = 20  # steps after which rounding may have grown


class Check(NamedTuple):
    name: str
    figure: float
    limit: float
    passed: bool


def at_most(name: str, figure: float, limit: float) -> Check:
    return Check(name, figure, limit, figure <= limit)


def at_least(name: str, figure: float, limit: float) -> Check:
    return Check(name, figure, limit, figure >= limit)


def compare(ranks: list[tuple[Record, Traffic]], dense: Record, size: Size, seed: int) -> list[Check]:
    records, traffic = [record for record, _ in ranks], [sent for _, sent in ranks]
    return [
        *same_as_dense(records, dense),
        *(
            at_most(f"step {step + 1}: error of gradients", worst_gradient(records, step, size, seed), 1e-4)
            for step in records[0].gradients
        ),
        at_most("common parameters that differ between ranks", parameters_that_differ(records), 0),
        *bytes_sent(traffic, size),
        at_most("last loss / first loss", records[0].losses[-1] / records[0].losses[0], 1),
    ]


def same_as_dense(records: list[Record], dense: Record) -> list[Check]:
    losses, expected = torch.tensor(records[0].losses), torch.tensor(dense.losses)
    n = min(EARLY, len(losses))
    elsewhere = sum(int((routes_of(records, step) != dense.routes[step]).sum()) for step in range(n))
    return [
        at_most(f"first {n} steps: hits of other experts", elsewhere, 0),
        at_most(f"first {n} steps: |loss - dense loss|", (losses - expected)[:n].abs().max().item(), 1e-5),
        at_most("last step: |loss / dense loss - 1|", (losses[-1] / expected[-1] - 1).abs().item(), 0.01),
    ]


def routes_of(records: list[Record], step: int) -> torch.Tensor:
    """[layers, B, S, K] of the whole batch."""
    return torch.cat([one.routes[step] for one in records], dim=1)


def worst_gradient(records: list[Record], step: int, size: Size, seed: int) -> float:
    """Largest error of any gradient of the ranks, relative to the largest element of that parameter's (that expert's)
    gradient in float64. The float64 model has their parameters and routes: between two experts that a gate rates alike,
    rounding decides, and the gradient jumps."""
    model = TinyMoe(size, seed, lambda seed: DenseExperts(size, seed)).double()
    model.load_state_dict(merged([one.parameters[step] for one in records]))
    inputs, targets = Text(size, seed).batch(step)
    loss_of(model(inputs, routes_of(records, step).long()), targets, size.sequences).backward()
    gradients = merged([one.gradients[step] for one in records])
    return max(error(name, gradients[name], value.grad) for name, value in model.named_parameters())


def error(name: str, gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """0 / 0, an expert that no token came to, is no error."""
    start_dim = 1 if is_of_an_expert(name) else 0
    difference = (gradient - exact).abs().flatten(start_dim).amax(-1)
    return (difference / exact.abs().flatten(start_dim).amax(-1)).nan_to_num(0.0, posinf=torch.inf).max().item()


def merged(parts: list[Gradients]) -> Gradients:
    """What the ranks have, as one process would: common parameters once, experts in the order of their ids."""
    return {
        name: torch.cat([part[name] for part in parts]) if is_of_an_expert(name) else value
        for name, value in parts[0].items()
    }


def parameters_that_differ(records: list[Record]) -> int:
    last = max(records[0].parameters)
    return sum(
        not torch.equal(value, one.parameters[last][name])
        for one in records
        for name, value in records[0].parameters[last].items()
        if not is_of_an_expert(name)
    )


def bytes_sent(traffic: list[Traffic], size: Size) -> list[Check]:
    """Each row that routing sends to another rank goes there forward and backward, and so do the sums that come back. A
    sum is as long as a row, and there are as many of them, counted over all ranks."""
    if len(traffic) == 1:
        return []
    payload = 2 * 4 * size.width * sum(one.rows for one in traffic)
    return [
        at_least("bytes dispatched to others / payload", sum(one.dispatch_bytes for one in traffic) / payload, 1),
        at_least("bytes combined for others / payload", sum(one.combine_bytes for one in traffic) / payload, 1),
        at_least("least bytes that a rank sent to others", min(one.dispatch_bytes for one in traffic), 1),
    ]
