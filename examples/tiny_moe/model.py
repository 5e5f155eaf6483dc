"""The model: bytes in, logits of the next byte out. What its experts are is the caller's choice."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, scaled_dot_product_attention

from .size import Size

BYTES = 256
BALANCE = 0.01  # weight of the term that keeps experts equally busy


class Output(NamedTuple):
    logits: torch.Tensor  # [B, S, 256]
    balance: torch.Tensor  # sum over sequences and layers, at least 1 each
    routes: torch.Tensor  # [layers, B, S, K] expert ids


class TinyMoe(nn.Module):
    def __init__(self, size: Size, seed: int, make_experts: Callable[[int], nn.Module]) -> None:
        """make_experts(seed) is called for each layer. All else has the same initial values for the same seed."""
        super().__init__()
        torch.manual_seed(seed)
        self.bytes = nn.Embedding(BYTES, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.layers = nn.ModuleList(Layer(size, make_experts(seed * 101 + layer)) for layer in range(size.layers))
        self.norm = norm(size)
        self.head = nn.Linear(size.width, BYTES, bias=False)

    def forward(self, inputs: torch.Tensor, routes: torch.Tensor | None = None) -> Output:
        """inputs [B, S]; routes: go these ways instead of those that the gates prefer."""
        x = self.bytes(inputs) + self.places.weight[: inputs.shape[1]]
        balances, taken = [], []
        for i, layer in enumerate(self.layers):
            x, balance, ids = layer(x, None if routes is None else routes[i])
            balances.append(balance)
            taken.append(ids)
        return Output(self.head(self.norm(x)), torch.stack(balances).sum(), torch.stack(taken))


class Layer(nn.Module):
    def __init__(self, size: Size, experts: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.moe_norm = norm(size), norm(size)
        self.attention = Attention(size)
        self.moe = Moe(size, experts)

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = x + self.attention(self.attention_norm(x))
        y, balance, ids = self.moe(self.moe_norm(x), ids)
        return x + y, balance, ids


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class Moe(nn.Module):
    def __init__(self, size: Size, experts: nn.Module) -> None:
        super().__init__()
        self.topk = size.topk
        self.gate = nn.Linear(size.width, size.experts, bias=False)
        self.experts = experts

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, D]; ids [B, S, K], None = the gate's choice."""
        scores = self.gate(x)
        if ids is None:
            ids = scores.topk(self.topk).indices
        weights = scores.gather(-1, ids).softmax(-1)
        y = self.experts(x.flatten(0, 1), ids.flatten(0, 1), weights.flatten(0, 1))
        return y.view_as(x), imbalance(scores, ids), ids


def imbalance(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """E * sum over experts of (share of hits) * (mean probability), each sequence by itself, so that it does not matter
    which ranks the sequences of a batch are on."""
    num_experts = scores.shape[-1]
    share = one_hot(ids, num_experts).to(scores.dtype).mean(dim=(1, 2))  # [B, E]
    return num_experts * (share * scores.softmax(-1).mean(1)).sum()


def norm(size: Size) -> nn.RMSNorm:
    return nn.RMSNorm(size.width, eps=1e-5)


def loss_of(output: Output, targets: torch.Tensor, sequences: int) -> torch.Tensor:
    """The part of a batch of `sequences` that these targets [b, S] have in its mean loss: parts add up to it."""
    surprise = cross_entropy(output.logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.shape[1]
    return (surprise + BALANCE * output.balance) / sequences
