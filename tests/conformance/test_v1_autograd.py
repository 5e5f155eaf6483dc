"""Training as clients do it: autograd functions around Buffer that save the handle's tensors."""

import deep_ep
import oracle
import pytest
import torch
from oracle import same

pytestmark = pytest.mark.v1

EXPERTS, HIDDEN, TOPK = 8, 64, 3


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights, ids, buffer):
        per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        recv_x, recv_ids, recv_weights, counts, handle, _ = buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma,
            num_tokens_per_expert=per_expert,
            is_token_in_rank=in_rank,
            topk_idx=ids,
            topk_weights=weights,
        )
        ctx.buffer = buffer
        ctx.save_for_backward(*handle)
        ctx.mark_non_differentiable(recv_ids)
        return recv_x, recv_weights, recv_ids, handle

    @staticmethod
    def backward(ctx, grad_x, grad_weights, _ids, _handle):
        combined, weights, _ = ctx.buffer.combine(grad_x.contiguous(), ctx.saved_tensors, topk_weights=grad_weights)
        return combined, weights, None, None


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer, *handle):
        ctx.buffer = buffer
        ctx.save_for_backward(*handle)
        return buffer.combine(x, handle)[0]

    @staticmethod
    def backward(ctx, grad):
        recv, *_ = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.saved_tensors)
        return (recv, None, *[None] * len(ctx.saved_tensors))


def layer(buffer, x, weights, ids, experts):
    recv_x, recv_weights, recv_ids, handle = Dispatch.apply(x, weights, ids, buffer)
    y = torch.zeros_like(recv_x)
    for local, matrix in enumerate(experts):
        share = torch.where(recv_ids == local, recv_weights, 0).sum(dim=1, keepdim=True)
        y = y + share * torch.tanh(recv_x @ matrix)
    return Combine.apply(y, buffer, *handle)


def dense(x, weights, ids, experts):
    out = torch.zeros_like(x)
    for expert, matrix in enumerate(experts):
        share = torch.where(ids == expert, weights, 0).sum(dim=1, keepdim=True)
        out = out + share * torch.tanh(x @ matrix)
    return out


def inputs(rank, tokens):
    made = torch.Generator(device="cpu").manual_seed(rank)
    with torch.device("cpu"):
        x = torch.randn(tokens, HIDDEN, generator=made)
        ids = torch.rand(tokens, EXPERTS, generator=made).topk(TOPK, dim=1).indices
        weights = torch.rand(tokens, TOPK, generator=made)
        if tokens > 1:
            ids[1, 2] = -1
    device = torch.get_default_device()
    return x.to(device), ids.to(device), weights.to(device)


def matrices():
    with torch.device("cpu"):
        made = torch.Generator().manual_seed(99)
        random = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=made) / HIDDEN**0.5
    return random.to(torch.get_default_device())


def gradients_body(rank, sizes, copies):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    x, ids, weights = inputs(rank.rank, sizes[rank.rank])
    x, weights = x.requires_grad_(), weights.requires_grad_()
    mine = oracle.owned(rank.rank, rank.size, EXPERTS)
    experts = matrices()[mine.start : mine.stop].requires_grad_()
    lens = torch.cos(torch.arange(HIDDEN))

    def copied(tensor):  # what offloading and recomputation do to saved tensors
        return tensor.detach().clone().cpu(), tensor.device

    hooks = torch.autograd.graph.saved_tensors_hooks(copied, lambda kept: kept[0].to(kept[1]).clone())
    if copies:
        with hooks:
            out = layer(buffer, x, weights, ids, experts)
    else:
        out = layer(buffer, x, weights, ids, experts)
    (out * lens).sum().backward()

    all_experts = matrices().double().requires_grad_()
    loss = 0
    for source in range(rank.size):
        other, other_ids, other_weights = inputs(source, sizes[source])
        other, other_weights = other.double().requires_grad_(), other_weights.double().requires_grad_()
        wanted = dense(other, other_weights, other_ids, all_experts)
        loss = loss + (wanted * lens).sum()
        if source == rank.rank:
            mine_of = (other, other_weights, wanted)
    loss.backward()
    seen = (x.grad, weights.grad, out.detach(), experts.grad)
    right = (mine_of[0].grad, mine_of[1].grad, mine_of[2].detach(), all_experts.grad[mine.start : mine.stop])
    for name, one, other in zip(("x", "weights", "out", "experts"), seen, right, strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5), f"gradient of {name}"


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("sizes", [(5, 7, 3, 4), (0, 9, 4, 0), (0, 0, 0, 0)])
def test_gradients_match_a_dense_model(world, sizes, copies):
    world.run(gradients_body, sizes, copies)


def tuple_body(rank):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, EXPERTS)
    layout = {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_rdma,
        "num_tokens_per_expert": per_expert,
        "is_token_in_rank": in_rank,
    }
    recv_x, *_, handle, _ = buffer.dispatch(batch.x, **layout, topk_idx=batch.ids, topk_weights=batch.weights)
    assert type(handle) is tuple
    assert all(one is None or isinstance(one, torch.Tensor) for one in handle)
    before = [one.clone() for one in handle]
    first = buffer.combine(recv_x, handle)[0]
    for _ in range(2):  # used again and again, never changed
        same(buffer.dispatch(batch.x, handle=tuple(before))[0], recv_x, "recv_x")
        same(buffer.combine(recv_x, list(before))[0], first, "combined_x")
    for one, copy in zip(handle, before, strict=True):
        same(one, copy, "a tensor of the handle")


def test_a_handle_is_a_flat_tuple_that_calls_do_not_change(world):
    world.run(tuple_body)


def threads_body(rank):
    """Backward runs on autograd's threads; so may anything else, one call at a time."""
    import threading

    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    batch = oracle.make_batch(rank.rank, 5, experts=EXPERTS)
    device, found = torch.get_default_device(), []

    def work():
        with device:
            layout = buffer.get_dispatch_layout(batch.ids, EXPERTS)
            recv_x, *_, handle, _ = buffer.dispatch(
                batch.x, None, layout[0], layout[1], layout[3], layout[2], batch.ids, batch.weights
            )
            found.append(buffer.combine(recv_x, handle)[0])

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
    for one in found:
        same(one, batch.x * reached, "combined_x")
    assert len(found) == 3


def test_any_thread_may_call(world):
    world.run(threads_body)
