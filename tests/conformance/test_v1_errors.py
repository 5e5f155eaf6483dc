"""Wrong arguments: an error that names the argument and the legal values, on every rank; the next call works."""

import os
import re

import deep_ep
import oracle
import pytest
import torch
from oracle import same
from rank_process import DEADLINE

pytestmark = pytest.mark.v1

EXPERTS = 8


def layout_of(buffer, batch):
    per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, EXPERTS)
    return {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_rdma,
        "num_tokens_per_expert": per_expert,
        "is_token_in_rank": in_rank,
        "topk_idx": batch.ids,
        "topk_weights": batch.weights,
    }


DISPATCH = {
    "x of one dimension": (lambda a: a.update(x=a["x"][0]), "x.*legal"),
    "x of float64": (lambda a: a.update(x=a["x"].double()), "x.*float64"),
    "x with too few rows": (lambda a: a.update(x=a["x"][:2]), "is_token_in_rank|x"),
    "x not a tensor": (lambda a: a.update(x="rows"), "x is a str"),
    "hidden of 6 bytes": (lambda a: a.update(x=a["x"][:, :3].contiguous()), "hidden.*16"),
    "scales of 8 bytes": (lambda a: a.update(x=(a["x"].to(torch.uint8), a["x"].double())), "scales"),
    "weights of bfloat16": (lambda a: a.update(topk_weights=a["topk_weights"].bfloat16()), "topk_weights.*float32"),
    "weights without ids": (lambda a: a.update(topk_idx=None), "topk_weights"),
    "ids without weights": (lambda a: a.update(topk_weights=None), "topk_idx"),
    "ids of float": (lambda a: a.update(topk_idx=a["topk_idx"].float()), "topk_idx.*int64"),
    "ids past the end": (lambda a: a.update(topk_idx=a["topk_idx"] + EXPERTS), "ids.*legal"),
    "no layout": (lambda a: a.update(is_token_in_rank=None), "is_token_in_rank"),
    "map of int": (lambda a: a.update(is_token_in_rank=a["is_token_in_rank"].int()), "is_token_in_rank.*bool"),
    "alignment 0": (lambda a: a.update(expert_alignment=0), "expert_alignment.*1 or more"),
    "worst -1": (lambda a: a.update(num_worst_tokens=-1), "num_worst_tokens.*0 or more"),
}
# Found before it is known which buffer the others will use: they wait for their deadline, so all ranks pass these.
EARLY = {"no layout"}
# Found on the GPU: the others may be in the call already, or have had it.
LATE = {"ids past the end"}


def raises(call, says):
    try:
        call()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        assert re.search(says, str(error)), f"'{error}' does not say {says}"
        return
    raise AssertionError(f"no error that says {says}")


def told_or_not(call, says):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        assert re.search(says, str(error)), f"'{error}' does not say {says}"


def refused_elsewhere(call, says="rank 0 refused"):
    """A call that rank 0 refuses, on another rank: it raises; or on a GPU, where the host may not wait for it, what it
    returns is no result: NaN."""
    try:
        result = call()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        assert re.search(says, str(error)), f"'{error}' does not say {says}"
        return
    assert torch.get_default_device().type == "cuda", f"no error that says {says}"
    rows = result[0][0] if isinstance(result[0], tuple) else result[0]
    assert bool(rows.float().isnan().all()), "a result of a refused call"


def dispatch_body(rank, names):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    for name in names:
        damage, says = DISPATCH[name]
        arguments = {"x": batch.x, **layout_of(buffer, batch)}
        alone = name not in EARLY
        if rank.rank == 0 or not alone:
            damage(arguments)
            raises(lambda: buffer.dispatch(**arguments), says)  # noqa: B023
        elif name in LATE and rank.device.type == "cuda":
            told_or_not(lambda: buffer.dispatch(**arguments), "rank 0 refused")  # noqa: B023
        else:
            raises(lambda: buffer.dispatch(**arguments), "rank 0 refused")  # noqa: B023
        recv_x, *_, handle, _ = buffer.dispatch(batch.x, **layout_of(buffer, batch))
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(buffer.combine(recv_x, handle)[0], batch.x * reached, f"combined_x after {name}")


def test_a_wrong_dispatch_on_one_rank_is_an_error_on_all(world):
    world.run(dispatch_body, tuple(DISPATCH))


COMBINE = {
    "x of float64": (lambda a: a.update(x=a["x"].double()), "x.*float64"),
    "x with a row too many": (lambda a: a.update(x=torch.cat([a["x"], a["x"][:1]])), "x has.*legal"),
    "weights of another shape": (lambda a: a.update(topk_weights=torch.ones(3, 9)), "topk_weights.*float32"),
    "three biases": (lambda a: a.update(bias=[a["x"]] * 3), "bias has 3"),
    "bias of another shape": (lambda a: a.update(bias=torch.ones(1, 4)), "bias"),
}


def combine_body(rank):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    recv_x, *_, handle, _ = buffer.dispatch(batch.x, **layout_of(buffer, batch))
    for name, (damage, says) in COMBINE.items():
        arguments = {"x": recv_x, "handle": handle}
        if rank.rank == 0:
            damage(arguments)
        if rank.rank == 0:
            raises(lambda: buffer.combine(**arguments), says)  # noqa: B023
        else:
            refused_elsewhere(lambda: buffer.combine(**arguments))  # noqa: B023
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(buffer.combine(recv_x, handle)[0], batch.x * reached, f"combined_x after {name}")


def test_a_wrong_combine_on_one_rank_is_an_error_on_all(world):
    world.run(combine_body)


def handles_body(rank):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    x = torch.ones(2, 16, dtype=torch.bfloat16)
    for handle in (7, (), (x,) * 6, (x,) * 7, ("a",) * 7):
        raises(lambda: buffer.combine(x, handle), "handle.*legal")  # noqa: B023
        raises(lambda: buffer.dispatch(x, handle=handle), "handle.*legal")  # noqa: B023


def test_foreign_handles_are_refused(world):
    world.run(handles_body, ranks=1)


def flags_body(rank):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    ids = torch.zeros(2, 1, dtype=torch.int64)
    raises(lambda: buffer.get_dispatch_layout(ids, 8, allocate_on_comm_stream=True), "allocate_on_comm_stream")
    raises(lambda: buffer.get_dispatch_layout(ids, 8, "now"), "previous_event is a str")
    raises(lambda: buffer.get_dispatch_layout(ids, 0), "num_experts.*1 or more")
    raises(lambda: buffer.get_dispatch_layout(ids[0], 8), "topk_idx.*legal")
    if rank.device.type == "cpu":  # a GPU's ids are not waited for here
        raises(lambda: buffer.get_dispatch_layout(ids + 8, 8), r"topk_idx\[0\]\[0\] = 8, legal: 0 to 7")
        raises(lambda: buffer.get_dispatch_layout(ids - 2, 8), r"topk_idx\[0\]\[0\] = -2, legal")
    raises(lambda: deep_ep.Buffer.set_num_sms(3), "num_sms.*even")
    raises(lambda: deep_ep.Buffer(None, 0), "group.*comm")
    raises(lambda: deep_ep.Buffer("everyone", 0), "group is a str")
    raises(lambda: deep_ep.Buffer(rank.group, -1), "num_nvl_bytes.*0 or more")
    raises(buffer.destroy, "explicitly_destroy")
    own = deep_ep.Buffer(rank.group, 1 << 25, explicitly_destroy=True)
    own.destroy()
    own.destroy()
    raises(lambda: own.clean_low_latency_buffer(1, 16, 8), "destroyed")


def test_flags_and_life(world):
    world.run(flags_body, ranks=1)


def forks_body(rank):
    buffer = deep_ep.Buffer(
        rank.group, 1 << 25, use_fabric=False, num_nvl_peers=rank.size, num_qps_per_rank=8 / rank.size * 2
    )
    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    plain = buffer.dispatch(batch.x, **layout_of(buffer, batch))[1]
    first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
    moved = buffer.dispatch(batch.x, **layout_of(buffer, batch), global_expert_id_offset=first)[1]
    same(moved, torch.where(plain < 0, EXPERTS, plain + first), "recv_topk_idx with an offset")


def test_arguments_of_forks_are_accepted(world):
    world.run(forks_body)


def late_body(rank):
    """A peer that never calls ends the others' call by an error that names it; they go on without a crash."""
    import heddle

    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    os.environ["HEDDLE_DEEP_EP_TIMEOUT"] = "3"
    try:
        buffer = deep_ep.Buffer(rank.group, 1 << 25)
    finally:
        os.environ["HEDDLE_DEEP_EP_TIMEOUT"] = DEADLINE
    layout = layout_of(buffer, batch)
    buffer.dispatch(batch.x, **layout)
    absent = rank.size - 1
    if rank.rank != absent:
        try:
            buffer.dispatch(batch.x, **layout)
        except heddle.TimeoutError_ as error:
            assert f"rank {absent}" in str(error), str(error)
        else:
            raise AssertionError("no error")
    torch.distributed.barrier(rank.group)  # the absent rank's buffer lives until all have given up


def test_a_rank_that_does_not_call_is_named(world):
    pytest.importorskip("heddle")
    world.run(late_body)
