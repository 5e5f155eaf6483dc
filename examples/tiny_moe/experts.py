"""The experts of a layer, twice: those of one rank, reached through Heddle, and all of them in one process.

Both map x [T, D] to the sum over k of weights[:, k] * expert[ids[:, k]](x), with ids [T, K] int64 and weights [T, K].
"""

import heddle
import heddle.torch
import torch
from torch import nn
from torch.nn.functional import silu

from .size import Size


def expert_weights(size: Size, experts: range, seed: int) -> tuple[nn.Parameter, nn.Parameter]:
    """[L, D, hidden] and [L, hidden, D] of the experts with these global ids: the same wherever an expert lives."""

    def draw(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.Generator().manual_seed(seed * 1009 + expert)
        up = torch.randn(size.width, size.hidden, generator=source) / size.width**0.5
        return up, torch.randn(size.hidden, size.width, generator=source) / size.hidden**0.5

    up, down = zip(*map(draw, experts), strict=True)
    return nn.Parameter(torch.stack(up)), nn.Parameter(torch.stack(down))


class HeddleExperts(nn.Module):
    """The experts of this rank. Tokens come from all ranks, and their results go back."""

    def __init__(self, size: Size, seed: int, buffer: heddle.Buffer) -> None:
        super().__init__()
        self.up, self.down = expert_weights(size, buffer.local_experts, seed)
        self.buffer = buffer
        self.rows_for_others = 0

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        plan = self.buffer.plan(ids)
        tokens = heddle.torch.dispatch(self.buffer, plan, x, weights, layout="expert_major")
        groups = tokens.x.split(tokens.received.num_per_expert.tolist())
        y = torch.cat([silu(rows @ up) @ down for rows, up, down in zip(groups, self.up, self.down, strict=True)])
        self.rows_for_others += int(plan.num_tokens_per_rank.sum() - plan.num_tokens_per_rank[self.buffer.rank])
        return heddle.torch.combine(self.buffer, tokens.handle, y * tokens.weights[:, None])


class DenseExperts(nn.Module):
    """Every expert, here, applied to every token; most results are multiplied by zero. Slow, and plainly right."""

    def __init__(self, size: Size, seed: int) -> None:
        super().__init__()
        self.up, self.down = expert_weights(size, range(size.experts), seed)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = silu(x @ self.up) @ self.down  # [E, T, D]
        weight = x.new_zeros(len(x), len(self.up)).scatter(1, ids, weights)  # [T, E]
        return torch.einsum("te,etd->td", weight, y)
