"""Calls in CUDA graphs: captured once, replayed with other rows and routing, between calls that are in no graph."""

import deep_ep
import oracle
import pytest
import slabs
import torch
from oracle import same

EXPERTS, HIDDEN, TOPK = slabs.EXPERTS, slabs.HIDDEN, 3


def on_gpus(world, body, *args):
    if world.device != "cuda":
        pytest.skip("graphs are of GPUs")
    world.run(body, *args)


class Captured:
    """A graph of call(batch) for `tokens` of this rank, whose batch may be filled again before each replay."""

    def __init__(self, call, tokens):
        self.batch = oracle.make_batch(0, tokens, hidden=HIDDEN, topk=TOPK, experts=EXPERTS)
        call(self.batch)  # a first call may wait, and make what later ones use
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.result = call(self.batch)

    def replay(self, batch):
        for mine, theirs in zip((self.batch.x, self.batch.ids, self.batch.weights), vars(batch).values(), strict=True):
            mine.copy_(theirs)
        self._graph.replay()
        return self.result


def everyone_of(rank, tokens, seed):
    return oracle.batches(tuple(tokens[: rank.size]), hidden=HIDDEN, topk=TOPK, experts=EXPERTS, seed=seed)


def replays(rank, call, check, sizes=(5, 16, 0, 9)):
    """Graphs of two sizes by turns, and a call outside after each; not all ranks replay the same size."""
    graphs = [Captured(call, tokens) for tokens in (sizes[rank.rank], 3)]
    for seed in range(6):
        tokens = [n if (seed + r) % 2 == 0 else 3 for r, n in enumerate(sizes)]
        everyone = everyone_of(rank, tokens, seed)
        check(everyone, graphs[(seed + rank.rank) % 2].replay(everyone[rank.rank]))
        eager = everyone_of(rank, sizes, seed + 100)
        check(eager, call(eager[rank.rank]))
    torch.cuda.synchronize()
    torch.distributed.barrier(rank.group)  # a graph's end takes memory of a buffer that peers may still write to


def low_latency_body(rank, hook):
    buffer = slabs.make(rank)

    def call(batch):
        recv_x, count, handle, _, receive = buffer.low_latency_dispatch(
            batch.x, batch.ids, slabs.MOST, EXPERTS, use_fp8=False, return_recv_hook=hook
        )
        if hook:
            receive()
        out, _, receive = buffer.low_latency_combine(
            recv_x, batch.ids, oracle.weights_of(batch), handle, return_recv_hook=hook
        )
        if hook:
            receive()
        return recv_x, count, handle, out

    def check(everyone, result):
        recv_x, count, handle, out = result
        slabs.check_slab(rank, everyone, recv_x, count, handle)
        slabs.close(out, slabs.back(everyone[rank.rank]))

    replays(rank, call, check)


@pytest.mark.ll
@pytest.mark.parametrize("hook", [False, True])
def test_low_latency(world, hook):
    on_gpus(world, low_latency_body, hook)


def fp8_body(rank):
    """As serving engines do: rows quantised on the way, statistics added to, the output's memory given."""
    buffer = slabs.make(rank)
    total = torch.zeros(len(oracle.owned(rank.rank, rank.size, EXPERTS)), dtype=torch.int32)
    out = torch.empty(slabs.MOST, HIDDEN, dtype=torch.bfloat16)

    def call(batch):
        (q, scales), count, handle, _, _ = buffer.low_latency_dispatch(
            batch.x, batch.ids, slabs.MOST, EXPERTS, cumulative_local_expert_recv_stats=total
        )
        rows = (q.float().unflatten(2, (-1, 128)) * scales[..., None]).flatten(2).to(torch.bfloat16)
        mine = out[: len(batch.x)]
        buffer.low_latency_combine(rows, batch.ids, oracle.weights_of(batch), handle, out=mine)
        return count, mine

    def check(everyone, result):
        count, mine = result
        same(total, count, "cumulative_local_expert_recv_stats")
        slabs.close(mine, slabs.back(everyone[rank.rank]), 0.1)

    graph = Captured(call, 9)
    for seed in range(4):
        total.zero_()
        everyone = everyone_of(rank, (9,) * rank.size, seed)
        check(everyone, graph.replay(everyone[rank.rank]))
    torch.cuda.synchronize()
    torch.distributed.barrier(rank.group)


@pytest.mark.ll
def test_low_latency_fp8(world):
    on_gpus(world, fp8_body)


def elastic_body(rank, expand):
    buffer = deep_ep.ElasticBuffer(rank.group, num_max_tokens_per_rank=slabs.MOST, hidden=HIDDEN, num_topk=TOPK)

    def call(batch):
        recv_x, ids, weights, handle, event = buffer.dispatch(
            batch.x,
            batch.ids,
            batch.weights,
            num_experts=EXPERTS,
            expert_alignment=4,
            do_expand=expand,
            do_cpu_sync=False,
            async_with_compute_stream=True,
        )
        event.current_stream_wait()
        combined, back, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        return recv_x, ids, handle, combined, back

    def check(everyone, result):
        recv_x, ids, handle, combined, back = result
        batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
        n = len(wanted.token)
        assert int(handle.psum_num_recv_tokens_per_scaleup_rank[-1]) == n
        same(
            handle.num_unaligned_recv_tokens_per_expert,
            torch.tensor(wanted.per_expert, dtype=torch.int32),
            "num_unaligned_recv_tokens_per_expert",
        )
        counts = [oracle.align(c, 4) for c in wanted.per_expert]
        ends = [sum(counts[: e + 1]) for e in range(len(counts))]
        if expand:
            ends = [end - count + c for end, count, c in zip(ends, counts, wanted.per_expert, strict=True)]
            reached = (batch.ids >= 0).sum(dim=1, keepdim=True)
        else:
            same(recv_x[:n], wanted.x, "recv_x")
            same(ids[:n], wanted.ids, "recv_topk_idx")
            assert bool((ids[n:] == -1).all()), "ids past the last row"
            reached = oracle.ranks_reached(batch, rank.size, EXPERTS)
        assert handle.psum_num_recv_tokens_per_expert.tolist() == ends
        same(combined, batch.x * reached.to(batch.x.dtype), "combined_x")
        same(back, oracle.weights_of(batch), "combined_topk_weights")

    replays(rank, call, check)


@pytest.mark.v2
@pytest.mark.parametrize("expand", [False, True])
def test_elastic_without_a_host_wait(world, expand):
    on_gpus(world, elastic_body, expand)


def worst_body(rank):
    """V1 with num_worst_tokens: layout, dispatch, cached dispatch and combine."""
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    worst = slabs.MOST * rank.size

    def call(batch):
        per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, EXPERTS)
        recv_x, ids, weights, counts, handle, event = buffer.dispatch(
            batch.x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=batch.ids,
            topk_weights=batch.weights,
            num_worst_tokens=worst,
            async_finish=True,
        )
        event.current_stream_wait()
        assert counts == []
        again = buffer.dispatch(batch.x * 2, handle=handle)[0]
        combined, back, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        return recv_x, ids, again, combined, back

    def check(everyone, result):
        recv_x, ids, again, combined, back = result
        batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
        n = len(wanted.token)
        assert len(recv_x) == len(ids) == len(again) == worst
        same(recv_x[:n], wanted.x, "recv_x")
        same(ids[:n], wanted.ids, "recv_topk_idx")
        assert bool((ids[n:] == -1).all()), "ids past the last row"
        same(again[:n], wanted.x * 2, "recv_x of a cached dispatch")
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(combined, batch.x * reached, "combined_x")
        same(back, oracle.weights_of(batch), "combined_topk_weights")

    replays(rank, call, check)


@pytest.mark.v1
def test_normal_of_fixed_size(world):
    on_gpus(world, worst_body)


def hybrid_body(rank):
    buffer = deep_ep.HybridEPBuffer(rank.group, HIDDEN, 16, EXPERTS // rank.size)
    rows = 16 * rank.size * TOPK

    def call(batch):
        routing, probs = deep_ep.hybrid_ep_buffer.indices_to_map(
            batch.ids, oracle.weights_of(batch), len(batch.ids), EXPERTS
        )
        tokens, row_probs, _, counts, handle = buffer.dispatch_with_permute(
            hidden=batch.x,
            routing_map=routing,
            probs=probs,
            num_of_experts_per_rank=EXPERTS // rank.size,
            pad_multiple=1,
            num_permuted_tokens=rows,
            non_blocking=True,
        )
        out, back = buffer.combine_with_unpermute(hidden=tokens, probs=row_probs, handle=handle)
        return counts, handle[-1], probs, out, back

    def check(everyone, result):
        counts, overflow, probs, out, back = result
        batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
        assert counts.tolist() == wanted.per_expert and int(overflow) == 0
        same(out, batch.x * (batch.ids >= 0).sum(dim=1, keepdim=True).to(batch.x.dtype), "combined")
        same(back, probs, "probs that came back")

    replays(rank, call, check, sizes=(3, 3, 3, 3))  # DeepEP wants as many tokens on every rank


@pytest.mark.hybrid
def test_hybrid_without_a_host_wait(world):
    if EXPERTS % min(world.size, 4):
        pytest.skip(f"{world.size} ranks")
    on_gpus(world, hybrid_body)
