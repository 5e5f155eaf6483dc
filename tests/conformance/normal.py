"""What tests of Buffer's normal mode share: a buffer, and the arguments of a dispatch."""

import deep_ep

EXPERTS = 12
SIZES = [(5, 7, 3, 4), (0, 9, 4, 1), (0, 0, 0, 0), (1, 64, 0, 37)]


def make(rank, **settings):
    return deep_ep.Buffer(rank.group, 1 << 25, 0, **settings)


def layout(buffer, batch, experts=EXPERTS):
    per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, experts)
    return {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_rdma,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }


def routed(buffer, batch, experts=EXPERTS):
    return {**layout(buffer, batch, experts), "topk_idx": batch.ids, "topk_weights": batch.weights}
