"""HybridEPBuffer: rows by expert, fixed sizes with overflow, handles that serve four calls."""

import inspect

import deep_ep
import oracle
import pytest
import torch
from deep_ep.hybrid_ep_buffer import indices_to_map
from oracle import align, same
from test_v1_errors import raises

pytestmark = pytest.mark.hybrid

EXPERTS, HIDDEN = 12, 256


def make(rank, **settings):
    return deep_ep.HybridEPBuffer(rank.group, HIDDEN, 64, EXPERTS // rank.size, **settings)


def routed(batch, by):
    if by == "ids":
        return {"topk_idx": batch.ids, "topk_weights": batch.weights, "num_of_experts": EXPERTS}
    routing, probs = indices_to_map(batch.ids, batch.weights, len(batch.ids), EXPERTS)
    return {"routing_map": routing, "probs": probs}


def permuted(everyone, rank, size, alignment):
    """[(source, token, weight)] or None for each row, and counts."""
    rows, counts = [], []
    for expert in oracle.owned(rank, size, EXPERTS):
        hits = sorted(oracle.expert_rows(everyone, expert))
        counts.append(len(hits))
        rows += [*hits, *[None] * (align(len(hits), alignment) - len(hits))]
    return rows, counts


def check_rows(everyone, seen, rows):
    tokens, probs = seen
    for i, hit in enumerate(rows):
        if hit is None:
            assert not tokens[i].any() and not probs[i].any(), "rows between experts"
        else:
            same(tokens[i], everyone[hit[0]].x[hit[1]], "tokens")
            assert float(probs[i]) == hit[2], "probs"


def dense_weights(batch):
    return indices_to_map(batch.ids, oracle.weights_of(batch), len(batch.ids), EXPERTS)[1]


def blocking_body(rank, by, pad, sizes):
    buffer = make(rank)
    everyone = oracle.batches(sizes[: rank.size], experts=EXPERTS)
    batch = everyone[rank.rank]
    rows, counts = permuted(everyone, rank.rank, rank.size, max(pad or 1, 1))
    for extra in (None, 128):
        wanted = None if extra is None else len(rows) + extra
        tokens, probs, scaling, per_expert, handle = buffer.dispatch_with_permute(
            hidden=batch.x, **routed(batch, by), pad_multiple=pad, num_permuted_tokens=wanted
        )
        assert tokens.shape == (len(rows) if wanted is None else wanted, HIDDEN) and scaling is None
        assert probs.shape == tokens.shape[:1] and probs.dtype == torch.float32
        check_rows(everyone, (tokens, probs), rows)
        assert per_expert.dtype == torch.int64 and per_expert.device.type == "cpu"
        assert per_expert.tolist() == [align(n, max(pad or 1, 1)) for n in counts]
        assert len(handle) == 11 and int(handle[-1]) == 0 and handle[8] == len(batch.x)
        assert handle[7].tolist() == counts
        y = tokens.clone()
        y[[i for i in range(len(y)) if i >= len(rows) or rows[i] is None]] = float("nan")
        combined, back = buffer.combine_with_unpermute(hidden=y, probs=probs, handle=handle, pad_multiple=pad)
        same(combined, batch.x * (batch.ids >= 0).sum(dim=1, keepdim=True).to(batch.x.dtype), "combined")
        same(back, dense_weights(batch), "probs that came back")
        assert buffer.combine_with_unpermute(hidden=y, handle=handle)[1] is None
        again, none, _, _, handle_again = buffer.dispatch_with_permute(
            hidden=batch.x * 2, handle=handle, pad_multiple=pad, num_permuted_tokens=per_expert.new_tensor(len(tokens))
        )
        assert none is None and handle_again[-1] is handle[-1]
        same(again[: len(rows)], tokens[: len(rows)] * 2, "tokens of a cached dispatch")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("by, pad", [("map", None), ("ids", 8), ("map", 32)])
@pytest.mark.parametrize("sizes", [(6, 6, 6, 6), (0, 9, 4, 1), (0, 0, 0, 0)])
def test_blocking(world, by, pad, sizes, ranks):
    world.run(blocking_body, by, pad, sizes, ranks=min(ranks, world.size))


def fixed_body(rank, rows_given):
    """Starts come from uncapped counts; pairs past the end are dropped, and contribute nothing."""
    buffer = make(rank)
    everyone = oracle.batches((9, 9, 9, 9)[: rank.size], experts=EXPERTS)
    batch = everyone[rank.rank]
    pad = 4
    rows, counts = permuted(everyone, rank.rank, rank.size, pad)
    tokens, probs, _, per_expert, handle = buffer.dispatch_with_permute(
        hidden=batch.x, **routed(batch, "map"), pad_multiple=pad, num_permuted_tokens=rows_given, non_blocking=True
    )
    assert tokens.shape == (rows_given, HIDDEN)
    check_rows(everyone, (tokens, probs), rows[:rows_given])
    starts = [sum(align(n, pad) for n in counts[:e]) for e in range(len(counts))]
    kept = [min(max(rows_given - s, 0), n) for s, n in zip(starts, counts, strict=True)]
    assert per_expert.tolist() == [align(n, pad) for n in kept] and per_expert.dtype == torch.int64
    assert handle[7].tolist() == kept
    assert int(handle[-1]) == int(starts[-1] + counts[-1] > rows_given), "overflow flag"
    combined, back = buffer.combine_with_unpermute(hidden=tokens, probs=probs, handle=handle)
    want, want_probs = torch.zeros_like(batch.x), torch.zeros(len(batch.x), EXPERTS)
    for owner in range(rank.size):
        row = 0
        for expert in oracle.owned(owner, rank.size, EXPERTS):
            hits = sorted(oracle.expert_rows(everyone, expert))
            for i, (source, token, weight) in enumerate(hits):
                if source == rank.rank and row + i < rows_given:
                    want[token] += batch.x[token]
                    want_probs[token, expert] = weight
            row += align(len(hits), pad)
    same(combined, want, "combined")
    same(back, want_probs, "probs that came back")
    again, *_ = buffer.dispatch_with_permute(hidden=batch.x, handle=handle, num_permuted_tokens=rows_given)
    used = min(len(rows), rows_given)
    same(again[:used], tokens[:used], "tokens of a cached dispatch")


@pytest.mark.parametrize("rows", [0, 8, 20, 400])
def test_fixed_sizes_drop_what_is_too_much(world, rows):
    world.run(fixed_body, rows)


def plain_body(rank, by):
    buffer = make(rank)
    everyone = oracle.batches((6, 0, 9, 4)[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    tokens, probs, scaling, handle = buffer.dispatch(batch.x, **routed(batch, by))
    same(tokens, wanted.x, "tokens")
    assert probs.shape == (len(tokens), EXPERTS) and probs.dtype == torch.float32 and scaling is None
    mine = oracle.owned(rank.rank, rank.size, EXPERTS)
    for row, (ids, weights) in enumerate(zip(wanted.ids.tolist(), wanted.weights.tolist(), strict=True)):
        right = [0.0] * len(mine)
        for local, weight in zip(ids, weights, strict=True):
            if local >= 0:
                right[local] = weight
        assert probs[row, mine.start : mine.stop].tolist() == right
    combined, back = buffer.combine(tokens, probs, handle)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype), "combined")
    same(back, dense_weights(batch), "probs that came back")
    same(buffer.dispatch(batch.x * 2, handle=handle)[0], wanted.x * 2, "tokens of a cached dispatch")
    assert int(handle[3]) == len(tokens)


@pytest.mark.parametrize("by", ["map", "ids"])
def test_plain_dispatch(world, by):
    world.run(plain_body, by)


def fp8_body(rank):
    buffer = make(rank, use_fp8=True)
    everyone = oracle.batches((6, 0, 9, 4)[: rank.size], experts=EXPERTS)
    batch = everyone[rank.rank]
    scaling = torch.arange(2.0 * len(batch.x)).view(-1, 2) + 100 * rank.rank
    tokens, _, scales, _, _ = buffer.dispatch_with_permute(
        hidden=batch.x.abs().to(torch.float8_e4m3fn), scaling_factor=scaling, **routed(batch, "map"), pad_multiple=4
    )
    rows, _ = permuted(everyone, rank.rank, rank.size, 4)
    for i, hit in enumerate(rows):
        want = [0.0, 0.0] if hit is None else [2.0 * hit[1] + 100 * hit[0], 2.0 * hit[1] + 1 + 100 * hit[0]]
        assert scales[i].tolist() == want, "scaling factors"
        if hit is not None:
            same(tokens[i].float(), everyone[hit[0]].x[hit[1]].abs().to(torch.float8_e4m3fn).float(), "tokens")


def test_ready_made_fp8(world):
    world.run(fp8_body)


def settings_body(rank):
    buffer = make(rank)
    assert (buffer.rank, buffer.group_size, buffer.group) == (rank.rank, rank.size, rank.group)
    assert buffer.num_of_nodes * buffer.num_of_hybrid_ep_ranks_per_nvlink_domain == rank.size
    assert buffer.node_rank * buffer.num_of_hybrid_ep_ranks_per_nvlink_domain + buffer.local_rank == rank.rank
    config = buffer.configurer.buffer_config
    assert (config.hidden_dim, config.max_num_of_tokens_per_rank) == (HIDDEN, 512)
    assert config.num_of_experts_per_rank == EXPERTS // rank.size and config.is_valid()
    assert config.num_of_ranks_per_node * config.num_of_nodes == rank.size
    assert deep_ep.HybridEPBuffer(rank.group, 64, 700, 1).configurer.buffer_config.max_num_of_tokens_per_rank == 704
    parameters = inspect.signature(buffer.dispatch_with_permute).parameters
    assert "fuse_permute_dispatch" in parameters
    assert "fuse_unpermute_combine" in inspect.signature(buffer.combine_with_unpermute).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    made = buffer.update_template_config(hidden_dim=512, num_of_tokens_per_rank=17, something=3)
    assert isinstance(made, deep_ep.HybridEpConfigInstance) and made.something == 3 and config.hidden_dim == 512
    buffer.empty_jit_cache()


def test_settings(world):
    world.run(settings_body)


def wrong_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 4, experts=EXPERTS)
    good = {"hidden": batch.x, **routed(batch, "map")}
    wrong = (
        ({"hidden": batch.x[0]}, "hidden is"),
        ({"routing_map": good["routing_map"].int()}, "routing_map is int32"),
        ({"probs": good["probs"].double()}, "probs is float64"),
        ({"non_blocking": True}, "num_permuted_tokens is None"),
        (
            {"non_blocking": True, "num_permuted_tokens": 5, "pad_multiple": 4},
            "num_permuted_tokens = 5.*pad_multiple 4",
        ),
    )
    for change, says in wrong:
        arguments = {**good, **change} if rank.rank == 0 else good
        raises(lambda: buffer.dispatch_with_permute(**arguments), says if rank.rank == 0 else "rank 0 refused")  # noqa: B023
    tokens, _, _, _, handle = buffer.dispatch_with_permute(**good)
    raises(lambda: buffer.combine_with_unpermute(hidden=tokens, handle=(1,) * 11), "handle")
    raises(lambda: buffer.combine_with_unpermute(hidden=tokens, handle=None), "handle")
    for rows, says in ((None, "num_permuted_tokens is None"), (len(tokens) + 1, "num_permuted_tokens =")):
        given = rows if rank.rank == 0 else len(tokens)
        raises(
            lambda: buffer.dispatch_with_permute(hidden=batch.x, handle=handle, num_permuted_tokens=given),  # noqa: B023
            says if rank.rank == 0 else "rank 0 refused",
        )


def test_wrong_arguments_are_errors_on_all_ranks(world):
    world.run(wrong_body)


def test_indices_to_map():
    ids = torch.tensor([[0, 3], [-1, 1]])
    routing, probs = indices_to_map(ids, torch.tensor([[0.5, 0.25], [9.0, 1.0]]), 2, 4)
    assert routing.tolist() == [[True, False, False, True], [False, True, False, False]]
    assert probs.tolist() == [[0.5, 0, 0, 0.25], [0, 1.0, 0, 0]]
    assert indices_to_map(ids, None, 2, 4)[1] is None
