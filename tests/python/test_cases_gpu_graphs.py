"""Robustness case 7 on GPUs: graphs."""

from __future__ import annotations

import heddle
import pytest

torch = pytest.importorskip("torch")
from gpu_trips import masked_ids, ranks_reached, trip  # noqa: E402
from gpus import host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def test_case_07_graphs_of_several_sizes_in_any_order():
    """Captured once, replayed 100 times with ids and rows written in place; eager calls between."""
    sizes = (1, 2, 4, 8, 16)

    def body(buffer, meet):
        graphs = {}
        settle()
        trip(buffer, masked_ids(16, "", 0), torch.ones(16, 64, device="cuda"))  # nothing is loaded in a capture
        settle()
        for rank in range(buffer.size):  # one after the other: they share torch's generator
            meet()
            if rank != buffer.rank:
                continue
            for tokens in sizes:
                ids, x = masked_ids(tokens, "", 1), torch.zeros(tokens, 64, device="cuda")
                graph = torch.cuda.CUDAGraph()
                settle()
                with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
                    result = trip(buffer, ids, x)
                graphs[tokens] = graph, ids, x, result
        meet()
        bad = torch.zeros((), dtype=torch.int64, device="cuda")
        for round in range(100):
            tokens = sizes[(3 * round + round // 7) % len(sizes)]
            graph, ids, x, result = graphs[tokens]
            ids.copy_(masked_ids(tokens, ("", "none", "", "skew")[round % 4], 10 * round + buffer.rank))
            x.fill_(round + 1)
            graph.replay()
            wanted = x * ranks_reached(ids, buffer.size, 8)
            bad += (result != wanted).sum()
            if round % 5 == 0:
                bad += (trip(buffer, ids, x) != wanted).sum()
            if round % 8 == 7:
                settle()
        assert host(bad).item() == 0
        settle()
        meet()

    on_gpus(2, body, experts=8, max_tokens=16)


def test_case_07_what_a_capture_cannot_hold_is_said():
    def body(buffer, meet):
        ids, x = masked_ids(4, "", 0), torch.ones(4, 64, device="cuda")
        plan = buffer.plan(ids)
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
            with pytest.raises(heddle.UsageError, match="fixed_size"):
                buffer.dispatch(plan, x)
        assert torch.equal(host(trip(buffer, ids, x)), host(x))

    on_gpus(1, body, experts=8, max_tokens=16)
