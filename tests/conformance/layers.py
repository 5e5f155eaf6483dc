"""What client programs share: a batch of a rank, experts that multiply by their number, and the dense layer."""

import oracle
import torch

EXPERTS, HIDDEN, TOPK = 12, 256, 3


def batch_of(rank, sizes=(6, 0, 11, 2)):
    return oracle.make_batch(rank.rank, sizes[rank.rank % len(sizes)], hidden=HIDDEN, topk=TOPK, experts=EXPERTS)


def scaled(x, ids, weights, first):
    """What experts do here: expert e multiplies by e + 1, for rows that have several local experts."""
    factor = torch.where(ids < 0, 0.0, weights * (ids + first + 1)).sum(dim=1, keepdim=True)
    return (x.float() * factor).to(x.dtype)


def factors(batch):
    """[N, 1] what a token is multiplied with in all."""
    return (oracle.weights_of(batch) * (batch.ids + 1)).sum(dim=1, keepdim=True)


def dense(batch):
    return batch.x.float() * factors(batch)
