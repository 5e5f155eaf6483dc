"""Robustness cases 20 and 22 on GPUs: sizes past 32 bits, and memory that GPUs do not reach."""

from __future__ import annotations

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from gpu_trips import masked_ids, ranks_reached, trip  # noqa: E402
from gpus import host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def test_case_20_more_than_2_to_the_31_elements():
    """300,000 rows of 7168: offsets in 64 bits."""
    tokens, hidden = 150_000, 7168

    def body(buffer, meet):
        ids = torch.tensor([[0, 1]], device="cuda").int().expand(tokens, 2).contiguous()
        column = (torch.arange(tokens, device="cuda") % 251 + buffer.rank).bfloat16()[:, None]
        x = column.expand(tokens, hidden).contiguous()
        settle()
        meet()
        received = buffer.dispatch(buffer.plan(ids), x)
        assert received.x.shape == (2 * tokens, hidden) and received.x.numel() > 2**31
        base = torch.arange(tokens, device="cuda") % 251
        wrong = sum(
            (received.x[s * tokens :][:tokens] != (base + s).bfloat16()[:, None]).any(-1).sum() for s in range(2)
        )
        y = buffer.combine(received.handle, received.x).x
        wrong += (y != 2 * column.float()).any(-1).sum()
        assert host(wrong).item() == 0

    on_gpus(2, body, experts=2)


@pytest.mark.parametrize("gibibytes", [3, 5, 33])
def test_case_20_large_windows(gibibytes):
    def body(buffer, meet):
        assert gibibytes << 30 <= buffer.predicted_bytes <= 1.4 * (gibibytes << 30)
        ids = torch.zeros(4096, 1, device="cuda").int()
        x = torch.arange(4096, device="cuda").float()[:, None].expand(4096, 1024).contiguous()
        for _ in range(3):
            assert torch.equal(host(trip(buffer, ids, x)), host(x))

    on_gpus(1, body, experts=1, max_tokens=4096, window_bytes=gibibytes << 30)


def test_case_20_out_of_memory_is_said():
    with pytest.raises(ranks.RankError, match="UsageError.*window of .* bytes.*GPU 0 has .* free"):
        on_gpus(1, lambda buffer, meet: None, experts=1, window_bytes=1 << 42)
    on_gpus(1, lambda buffer, meet: None, experts=1)


@pytest.mark.parametrize(
    "settings", [{"pinned_windows": True}, {"pinned_pairs": [(0, 1)]}, {"pinned_pairs": [(0, 2), (2, 1)]}]
)
def test_case_22_gpus_that_do_not_reach_each_other(settings):
    """A slower path that is right."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        settle()
        meet()
        for round in range(20):
            y = trip(buffer, ids, x * round)
            assert torch.equal(host(y), host(x * round * ranks_reached(ids, buffer.size, 8)))
        return buffer.windows, buffer.paths

    for rank, (windows, paths) in enumerate(on_gpus(3, body, experts=8, max_tokens=16, **settings)):
        apart = {frozenset(pair) for pair in settings.get("pinned_pairs", ())}
        assert windows == ("mixed" if apart else "pinned")
        for peer, path in enumerate(paths):
            assert (path == "pinned") == (not apart or frozenset((rank, peer)) in apart)


@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 3)], [(-1, 1)]])
def test_case_22_wrong_pairs_are_said(pairs):
    for error in ranks.on_threads(2, lambda one: heddle.Buffer(one, experts=2, device="cuda:0", pinned_pairs=pairs)):
        assert isinstance(error, heddle.UsageError) and "pinned_pairs" in str(error)
