"""ElasticBuffer: wrong arguments are errors that name them, on every rank; the next call works."""

import deep_ep
import oracle
import pytest
import torch
from elastic import EXPERTS, MOST, make
from oracle import same
from test_v1_errors import LATE, raises, refused_elsewhere, told_or_not

pytestmark = pytest.mark.v2


def wrong_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 4, experts=EXPERTS)
    good = {"x": batch.x, "topk_idx": batch.ids, "topk_weights": batch.weights, "num_experts": EXPERTS}
    recv_x, _, _, handle, _ = buffer.dispatch(**good)
    wrong = {
        "x of float64": ({"x": batch.x.double()}, "x is float64"),
        "ids of float": ({"topk_idx": batch.ids.float()}, "topk_idx.*int64"),
        "ids past the end": ({"topk_idx": batch.ids + EXPERTS}, "ids.*legal"),
        "weights of float64": ({"topk_weights": batch.weights.double()}, "topk_weights.*float32"),
        "alignment 0": ({"expert_alignment": 0}, "expert_alignment.*1 or more"),
        "M too large": ({"num_max_tokens_per_rank": MOST + 1}, f"num_max_tokens_per_rank.*{MOST}"),
        "M too small": ({"num_max_tokens_per_rank": 3}, "4 tokens"),
        "stats of int64": (
            {"cumulative_local_expert_recv_stats": torch.zeros(1, dtype=torch.int64)},
            "cumulative_local_expert_recv_stats.*int32",
        ),
    }
    for name, (change, says) in wrong.items():
        if rank.rank == 0:
            raises(lambda: buffer.dispatch(**{**good, **change}), says)  # noqa: B023
        elif name in LATE and rank.device.type == "cuda":
            told_or_not(lambda: buffer.dispatch(**good), "rank 0 refused")
        else:
            raises(lambda: buffer.dispatch(**good), "rank 0 refused|disagree")
        same(buffer.dispatch(**good)[0], recv_x, f"recv_x after {name}")
    for change, says in (
        ({"topk_idx": batch.ids}, "topk_idx"),
        ({"num_experts": EXPERTS + 1}, "num_experts"),
        ({"expert_alignment": 16}, "expert_alignment"),
        ({"num_max_tokens_per_rank": 8}, "num_max_tokens_per_rank"),
    ):
        arguments = {"x": batch.x, "handle": handle, **(change if rank.rank == 0 else {})}
        raises(lambda: buffer.dispatch(**arguments), says if rank.rank == 0 else "rank 0 refused")  # noqa: B023
    for change, says in (
        ({"x": recv_x[:-1]}, "x has"),
        ({"topk_weights": torch.ones(1, 1)}, "topk_weights"),
        ({"bias": (batch.x,) * 3}, "bias has 3"),
    ):
        if rank.rank == 0:
            raises(lambda: buffer.combine(**{"x": recv_x, "handle": handle, **change}), says)  # noqa: B023
        else:
            refused_elsewhere(lambda: buffer.combine(recv_x, handle))
    raises(lambda: buffer.combine(recv_x, (1, 2)), "handle is a tuple")
    raises(lambda: buffer.dispatch(batch.x, handle=7), "handle is a int")
    raises(lambda: buffer.dispatch(batch.x, batch.ids), "num_experts is None")
    raises(lambda: buffer.dispatch(**good, previous_event=buffer.capture()), "allocate_on_comm_stream")
    raises(lambda: buffer.get_theoretical_num_sms(8, 9), "num_topk = 9")
    raises(buffer.destroy, "explicitly_destroy")
    raises(lambda: deep_ep.ElasticBuffer(rank.group), "num_bytes is None")
    same(buffer.combine(recv_x, handle)[0], batch.x * oracle.ranks_reached(batch, rank.size, EXPERTS), "combined_x")


def test_wrong_arguments_are_errors_on_all_ranks(world):
    world.run(wrong_body)
