"""What tests of ElasticBuffer share: a buffer, and its sizes."""

import deep_ep

EXPERTS, MOST, TOPK, HIDDEN = 12, 40, 3, 256
SIZES = [(5, 7, 3, 4), (0, 40, 4, 1), (0, 0, 0, 0)]


def make(rank, **settings):
    settings = {"num_max_tokens_per_rank": MOST, "hidden": HIDDEN, "num_topk": TOPK, **settings}
    return deep_ep.ElasticBuffer(rank.group, **settings)
