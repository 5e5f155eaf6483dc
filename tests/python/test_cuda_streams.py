"""Torch tensors on GPUs: on torch's streams, in torch's memory, in graphs."""

from __future__ import annotations

import heddle
import pytest

torch = pytest.importorskip("torch")
from gpus import EXPERTS, HIDDEN, TOKENS, batch, host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


# Inputs are made on the stream just before, freed, and their memory written right after; fresh memory holds NaN;
# outputs are used on another stream. Nothing is synchronised but every few rounds, so that the queue does not fill.
def test_streams_and_memory_that_is_used_again():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank, torch.float32))
        hits = torch.stack([(ids >= first) & (ids < first + EXPERTS // 2) for first in (0, EXPERTS // 2)])
        times = hits.any(-1).sum(0).float()[:, None]
        other = torch.cuda.Stream()
        wrong = torch.zeros(1, device="cuda", dtype=torch.int64)
        plan = buffer.plan(ids)
        settle()
        meet()
        for round in range(300):
            torch.full((4 * TOKENS, HIDDEN), float("nan"), device="cuda")  # given back at once
            mine = x + round
            received = buffer.dispatch(plan, mine, fixed_size=round % 3 == 0)
            del mine
            torch.full((TOKENS, HIDDEN), float("nan"), device="cuda")
            if round % 2 == 0:
                combined = buffer.combine(received.handle, received.x).x
            else:
                combined = buffer.combine(received.handle, received.x, stream=other).x
                torch.cuda.current_stream().wait_stream(other)
                combined.record_stream(torch.cuda.current_stream())
            del received
            wrong += (combined != (x + round) * times).sum()
            if round % 16 == 15:
                settle()
        assert host(wrong).item() == 0

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_split_calls_and_another_stream():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        whole = buffer.dispatch(plan, x, fixed_size=True)
        first = buffer.dispatch_send(plan, x)
        second = buffer.dispatch_send(plan, x)
        with torch.cuda.stream(torch.cuda.Stream()):
            late = second.receive().x.clone()
            settle()
        early = first.receive().x
        count = int(host(whole.handle.recv_offset)[-1])
        for seen in (early, late):
            assert torch.equal(host(seen[:count]), host(whole.x[:count]))
        split = buffer.combine_send(whole.handle, whole.x)
        wanted = buffer.combine(whole.handle, whole.x).x
        assert torch.equal(host(split.receive().x), host(wanted))

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_graphs_are_captured_and_replayed_between_other_calls():
    def body(buffer, meet):
        x, ids, weights = (one.cuda() for one in batch(buffer.rank, torch.float32))
        plan = buffer.plan(ids)
        wanted = buffer.dispatch(plan, x, weights=weights, layout="expert_major", fixed_size=True)
        wanted = buffer.combine(wanted.handle, wanted.x, weighted=True).x
        settle()
        meet()
        graph = torch.cuda.CUDAGraph()
        static = x.clone()
        settle()
        for rank in range(buffer.size):  # one after the other: they share torch's generator
            meet()
            if rank != buffer.rank:
                continue
            with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
                received = buffer.dispatch(plan, static, weights=weights, layout="expert_major", fixed_size=True)
                result = buffer.combine(received.handle, received.x, weighted=True).x
        del received, plan
        meet()
        wrong = torch.zeros(1, device="cuda", dtype=torch.int64)
        for round in range(40):
            if round % 3 == 1:
                another = buffer.plan(ids)
                eager = buffer.dispatch(another, x, weights=weights, layout="expert_major", fixed_size=True)
                wrong += (buffer.combine(eager.handle, eager.x, weighted=True).x != wanted).sum()
                continue
            static.copy_(x * (round + 1))
            graph.replay()
            wrong += (result != wanted * (round + 1)).sum()
            if round % 8 == 7:
                settle()
        assert host(wrong).item() == 0
        settle()
        meet()

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_a_capture_needs_fixed_sizes():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(0))
        plan = buffer.plan(ids)
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
            with pytest.raises(heddle.UsageError, match="fixed_size"):
                buffer.dispatch(plan, x)
        assert buffer.dispatch(plan, x).num_rows > 0

    on_gpus(1, body, experts=EXPERTS, max_tokens=TOKENS)
