"""Torch tensors in and out, and gradients: against a dense model in one process."""

import heddle
import numpy as np
import pytest
import ranks

torch = pytest.importorskip("torch")
import heddle.torch as moe  # noqa: E402

HIDDEN, EXPERTS = 16, 6


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "uint8"])
def test_tensors_keep_their_type_and_share_memory(name):
    dtype = getattr(torch, name)
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        x = torch.arange(48).reshape(3, 16).to(dtype)
        ids = torch.tensor([[0], [1], [-1]], dtype=torch.int32)
        received = buffer.dispatch(buffer.plan(ids), x)
        assert received.x.dtype == dtype and received.x_dtype == name
        assert torch.equal(received.x.view(torch.uint8), x[:2].view(torch.uint8))
        assert received.ids.dtype == torch.int32 and received.handle.recv_ids.dtype == torch.int32
        if name not in ("float8_e4m3fn", "uint8"):
            combined = buffer.combine(received.handle, received.x, bias=torch.ones_like(x))
            assert combined.x.dtype == dtype and torch.equal(combined.x, (torch.cat([x[:2], 0 * x[:1]]) + 1).to(dtype))


def test_plans_of_tensors_are_tensors():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        plan = buffer.plan(torch.tensor([[0, 1], [1, -1]]))
        assert torch.equal(plan.is_token_in_rank, torch.tensor([[True], [True]]))
        assert plan.num_tokens_per_expert.tolist() == [1, 2]
        assert buffer.plan_from_rank_map(torch.tensor([[True], [False]])).num_tokens_per_rank.tolist() == [1]


def test_transposed_expanded_and_gradient_tensors_are_accepted():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        plan = buffer.plan(torch.tensor([[0], [1]]).expand(2, 3))
        base = torch.arange(32.0).reshape(16, 2)
        for x in (
            base.T,
            base.T[:1].expand(2, 16),
            base.T.clone().requires_grad_(),
            torch.nn.Parameter(base.T.clone()),
        ):
            assert torch.equal(buffer.dispatch(plan, x).x, x.detach())


def test_an_allocator_of_tensors_makes_the_results():
    made = []

    def allocate(name, shape):
        made.append(torch.empty(shape, dtype=getattr(torch, name)))
        return made[-1]

    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        buffer.set_allocator(allocate)
        x = buffer.dispatch(buffer.plan(torch.tensor([[0]])), torch.ones(1, 16, dtype=torch.bfloat16)).x
    assert any(x is tensor for tensor in made)


def batch(rank, tokens):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:3] for _ in range(tokens)]) if tokens else None
    weights = torch.rand(tokens, 3, generator=generator)
    ids = torch.empty(0, 3, dtype=torch.int64) if ids is None else ids
    if tokens > 2:
        ids[0, 1] = -1
    return x, ids, weights


def matrices(dtype):
    generator = torch.Generator().manual_seed(99)
    return (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5).to(dtype)


def dense(x, ids, weights, experts):
    """The same layer in one process."""
    out = torch.zeros_like(x)
    for k in range(ids.shape[1]):
        for expert in range(EXPERTS):
            chosen = ids[:, k] == expert
            out = out + chosen[:, None] * weights[:, k, None] * torch.tanh(x @ experts[expert])
    return out


def expert_major(buffer, x, ids, weights, experts):
    tokens = moe.dispatch(buffer, buffer.plan(ids), x, weights, layout="expert_major", alignment=4)
    offsets = tokens.received.expert_offsets.tolist()
    parts = [torch.tanh(tokens.x[a:b] @ experts[i]) for i, (a, b) in enumerate(zip(offsets, offsets[1:], strict=False))]
    return moe.combine(buffer, tokens.handle, torch.cat(parts) * tokens.weights[:, None])


def token_major(buffer, x, ids, weights, experts):
    tokens = moe.dispatch(buffer, buffer.plan(ids), x, weights)
    y = torch.zeros_like(tokens.x)
    for local in range(len(experts)):
        share = torch.where(tokens.received.ids == local, tokens.weights, 0).sum(dim=1, keepdim=True)
        y = y + share * torch.tanh(tokens.x @ experts[local])
    return moe.combine(buffer, tokens.handle, y)


LAYERS = {"expert_major": expert_major, "token_major": token_major}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("sizes", [(5, 7, 3), (0, 9, 4), (0, 0, 0)])
def test_case_24_gradients_match_a_dense_model(layer, sizes):
    """x, weights and experts: within 1e-4 of float64, ranks without tokens and unused experts included."""

    def body(buffer):
        x, ids, weights = batch(buffer.rank, sizes[buffer.rank])
        x, weights = x.requires_grad_(), weights.requires_grad_()
        experts = matrices(torch.float32)[buffer.local_experts.start : buffer.local_experts.stop].requires_grad_()
        out = LAYERS[layer](buffer, x, ids, weights, experts)
        (out * torch.cos(torch.arange(HIDDEN))).sum().backward()
        return out.detach(), x.grad, weights.grad, experts.grad

    results = ranks.buffers(3, body, experts=EXPERTS)
    experts = matrices(torch.float64).requires_grad_()
    outs = []
    for rank, (out, x_grad, weights_grad, _) in enumerate(results):
        x, ids, weights = batch(rank, sizes[rank])
        x, weights = x.double().requires_grad_(), weights.double().requires_grad_()
        wanted = dense(x, ids, weights, experts)
        loss = (wanted * torch.cos(torch.arange(HIDDEN))).sum()
        loss.backward()
        for seen, right in ((out, wanted.detach()), (x_grad, x.grad), (weights_grad, weights.grad)):
            assert torch.allclose(seen.double(), right, rtol=1e-4, atol=1e-5)
        outs.append(wanted)
    assert torch.allclose(torch.cat([one[3] for one in results]).double(), experts.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Input .* requires gradient and is not a double")
def test_case_24_gradcheck_of_the_pair():
    """The pair is linear in x and in bias, so finite differences are exact but for rounding."""
    ids = torch.tensor([[0, 5], [3, -1], [2, 2]])

    def body(buffer):
        x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(buffer.rank)).requires_grad_()
        bias = torch.zeros(3, HIDDEN).requires_grad_()

        def pair(x, bias):
            tokens = moe.dispatch(buffer, buffer.plan(ids), x)
            return moe.combine(buffer, tokens.handle, tokens.x, bias)

        return torch.autograd.gradcheck(pair, (x, bias), eps=0.5, atol=1e-3, rtol=1e-3, nondet_tol=0)

    assert ranks.buffers(2, body, experts=EXPERTS) == [True, True]


def test_case_24_recomputation_two_layers_and_evaluation_share_one_buffer():
    from torch.utils.checkpoint import checkpoint

    def body(buffer):
        x, ids, weights = batch(buffer.rank, 4 + buffer.rank)
        experts = matrices(torch.float32)[buffer.local_experts.start : buffer.local_experts.stop]

        def model(x, recompute):
            for layer in (expert_major, token_major):
                step = lambda x, layer=layer: layer(buffer, x, ids, weights, experts)  # noqa: E731
                x = checkpoint(step, x, use_reentrant=False) if recompute else step(x)
            return x.square().sum()

        grads = []
        for recompute in (False, True, False):
            leaf = x.clone().requires_grad_()
            model(leaf, recompute).backward()
            grads.append(leaf.grad)
            with torch.no_grad():
                model(x, False)  # an evaluation pass between steps
        assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])

    ranks.buffers(2, body, experts=EXPERTS)


def test_case_24_a_stale_handle_is_a_clear_error():
    def body(buffer):
        x, ids, _ = batch(buffer.rank, 4)
        old = moe.dispatch(buffer, buffer.plan(ids), x)
        for seed in range(3):  # a handle stays good while the buffer serves others
            other, other_ids, _ = batch(seed, 6)
            moe.dispatch(buffer, buffer.plan(other_ids), other)
        moe.combine(buffer, old.handle, old.x)
        buffer.reset()
        with pytest.raises(heddle.UsageError, match="does not survive reset"):
            moe.combine(buffer, old.handle, old.x)

    ranks.buffers(2, body, experts=EXPERTS)


def in_gloo_groups(bootstrap, port):
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, bootstrap.size, bootstrap.rank == 0)
    dist.init_process_group("gloo", store=store, rank=bootstrap.rank, world_size=bootstrap.size)
    groups = [dist.new_group([2, 0]), None]
    rows = []
    for group in groups:
        if group is not None and bootstrap.rank == 1:
            continue
        with moe.buffer(group, experts=6, timeout=ranks.PATIENCE) as buffer:
            ids = torch.arange(6)[:, None]
            x = torch.full((6, 16), float(buffer.rank))
            received = buffer.dispatch(buffer.plan(ids), x)
            rows.append((buffer.rank, buffer.size, received.num_rows))
            assert received.x[:, 0].tolist() == [r for r in range(buffer.size) for _ in range(6 // buffer.size)]
            dist.barrier(group)
    dist.destroy_process_group()  # a buffer may outlive it
    bootstrap.barrier()
    return rows


def test_case_12_process_groups_of_torch():
    descriptor, port = heddle.tcp_listen()
    import os

    os.close(descriptor)
    results = ranks.on_processes(3, in_gloo_groups, port)
    assert [rows[-1] for rows in results] == [(rank, 3, 6) for rank in range(3)]
    assert results[0][0][1:] == (2, 6) and results[2][0][1:] == (2, 6) and len(results[1]) == 1


def test_numpy_ids_with_torch_rows_give_torch_rows():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        received = buffer.dispatch(buffer.plan(np.array([[0]])), torch.ones(1, 8))
        assert isinstance(received.x, torch.Tensor) and isinstance(received.handle.plan.ids, torch.Tensor)
