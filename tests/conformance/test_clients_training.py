"""Small programs in the style of the frameworks that train models: forward and backward, each against a dense layer."""

import deep_ep
import oracle
import pytest
import torch
from deep_ep.utils import EventHandle, EventOverlap
from layers import EXPERTS, HIDDEN, TOPK, batch_of, dense, factors, scaled
from oracle import same
from slabs import close


def check_gradients(batch, x, weights):
    """Of the sum of the layer's outputs."""
    slope = factors(batch).expand(x.shape)
    assert torch.allclose(x.grad.float(), slope, rtol=0.02, atol=0.05), "gradient of x"
    wanted = torch.where(batch.ids < 0, 0.0, batch.x.float().sum(dim=1, keepdim=True) * (batch.ids + 1))
    assert torch.allclose(weights.grad, wanted, rtol=0.02, atol=4.0), "gradient of weights"


def megatron_body(rank, is_async):
    """The handle hangs on the context; an event of the current stream goes before each call, and one is waited for."""
    buffer = deep_ep.Buffer(rank.group, 1 << 25, 0)
    batch = batch_of(rank)

    def events():
        event = EventOverlap(EventHandle()) if is_async else None
        return {"previous_event": event, "async_finish": is_async, "allocate_on_comm_stream": is_async}

    def waited(event):
        if is_async:
            event.current_stream_wait()

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, ids, probs):
            per_rank, per_rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(ids, EXPERTS, **events())
            recv_x, recv_ids, recv_probs, counts, handle, event = buffer.dispatch(
                x,
                topk_idx=ids,
                topk_weights=probs,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_rdma,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
                **{**events(), "previous_event": event if is_async else None},
            )
            waited(event)
            ctx.handle = handle
            return recv_x, recv_ids, recv_probs, torch.tensor(counts), handle

        @staticmethod
        def backward(ctx, grad, _ids, grad_probs, _counts, _handle):
            x, probs, event = buffer.combine(grad.contiguous(), ctx.handle, topk_weights=grad_probs.float(), **events())
            waited(event)
            return x, None, probs

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, handle):
            combined, _, event = buffer.combine(x, handle=handle, **events())
            waited(event)
            ctx.handle = handle
            return combined

        @staticmethod
        def backward(ctx, grad):
            x, *_, event = buffer.dispatch(grad.contiguous(), handle=ctx.handle, **events())
            waited(event)
            return x, None

    for _ in range(2):  # a step again, as training goes on
        x, probs = batch.x.clone().requires_grad_(), oracle.weights_of(batch).requires_grad_()
        recv_x, recv_ids, recv_probs, counts, handle = Dispatch.apply(x, batch.ids, probs)
        assert int(counts.sum()) == int((recv_ids != -1).sum())
        first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
        out = Combine.apply(scaled(recv_x, recv_ids, recv_probs, first), handle)
        out.float().sum().backward()
        close(out.detach(), dense(batch), 0.02)
        check_gradients(batch, x, probs)


@pytest.mark.v1
@pytest.mark.parametrize("is_async", [False, True])
def test_megatron(world, is_async):
    world.run(megatron_body, is_async)


def xtuner_body(rank):
    """Events set by hand, the layout's event passed on, a handle through save_for_backward, all on the comm stream."""
    from deep_ep_cpp import EventHandle as FromCpp

    assert FromCpp is EventHandle
    buffer = deep_ep.Buffer(rank.group, 1 << 25, 1 << 25, low_latency_mode=True, num_qps_per_rank=EXPERTS // rank.size)
    batch = batch_of(rank)
    on_comm = {"async_finish": True, "allocate_on_comm_stream": True}
    ended = EventOverlap(None)

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, ids, weights):
            *layout, event = buffer.get_dispatch_layout(ids, EXPERTS, previous_event=buffer.capture(), **on_comm)
            recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
                x,
                topk_idx=ids,
                topk_weights=weights,
                num_tokens_per_rank=layout[0],
                num_tokens_per_rdma_rank=layout[1],
                num_tokens_per_expert=layout[2],
                is_token_in_rank=layout[3],
                previous_event=event,
                **on_comm,
            )
            ended.event = event.event
            ended.current_stream_wait()
            assert sum(counts) == int((recv_ids != -1).sum())
            ctx.save_for_backward(*handle)
            ctx.mark_non_differentiable(recv_ids, *handle)
            return recv_x, recv_ids, recv_weights, *handle

        @staticmethod
        def backward(ctx, grad, _ids, grad_weights, *_handle):
            x, weights, event = buffer.combine(
                grad.contiguous(),
                ctx.saved_tensors,
                topk_weights=grad_weights.contiguous(),
                previous_event=buffer.capture(),
                **on_comm,
            )
            event.current_stream_wait()
            return x, None, weights

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *handle):
            combined, _, event = buffer.combine(x, handle, previous_event=buffer.capture(), **on_comm)
            event.current_stream_wait()
            ctx.save_for_backward(*handle)
            return combined

        @staticmethod
        def backward(ctx, grad):
            handle = ctx.saved_tensors
            x, *_, event = buffer.dispatch(grad.contiguous(), handle=handle, previous_event=buffer.capture(), **on_comm)
            event.current_stream_wait()
            return (x, *[None] * len(handle))

    x, weights = batch.x.clone().requires_grad_(), oracle.weights_of(batch).requires_grad_()
    recv_x, ids, recv_weights, *handle = Dispatch.apply(x, batch.ids, weights)
    first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
    out = Combine.apply(scaled(recv_x, ids, recv_weights, first), *handle)
    out.float().sum().backward()
    close(out.detach(), dense(batch), 0.02)
    check_gradients(batch, x, weights)


@pytest.mark.v1
def test_xtuner(world):
    world.run(xtuner_body)


def torchtitan_body(rank):
    """V2 forward and backward: rows by expert, cached dispatch of gradients."""
    buffer = deep_ep.ElasticBuffer(rank.group, num_max_tokens_per_rank=16, hidden=HIDDEN, num_topk=TOPK)
    batch = batch_of(rank)

    class Send(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weights):
            recv_x, _, recv_weights, ctx.handle, _ = buffer.dispatch(
                x, batch.ids, weights, num_experts=EXPERTS, do_expand=True, do_zero_padding=True, expert_alignment=4
            )
            return recv_x, recv_weights

        @staticmethod
        def backward(ctx, grad, grad_weights):
            return buffer.combine(grad, ctx.handle, topk_weights=grad_weights)[:2]

    class Return(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, handle):
            ctx.handle = handle
            return buffer.combine(y, handle)[0]

        @staticmethod
        def backward(ctx, grad):
            return buffer.dispatch(grad.contiguous(), handle=ctx.handle, do_zero_padding=True)[0], None

    x = batch.x.float().requires_grad_()
    weights = oracle.weights_of(batch).requires_grad_()
    recv_x, recv_weights = Send.apply(x, weights)
    handle = recv_x.grad_fn.handle
    out = Return.apply(recv_x * recv_weights[:, None] * 3, handle)
    out.sum().backward()
    total = oracle.weights_of(batch).sum(dim=1, keepdim=True) * 3
    same(out.detach(), x.detach() * total, "out")
    same(x.grad, total.expand(x.shape), "gradient of x")
    slope = torch.where(batch.ids < 0, 0.0, 3 * x.detach().sum(dim=1, keepdim=True).expand(batch.ids.shape))
    same(weights.grad, slope, "gradient of weights")


@pytest.mark.v2
def test_torchtitan(world):
    world.run(torchtitan_body)


def megatron_hybrid_body(rank, non_blocking):
    """HybridEP: dispatch with probs forward is combine backward, and the other way round, by one handle."""
    buffer = deep_ep.HybridEPBuffer(rank.group, HIDDEN, 16, EXPERTS // rank.size)
    batch = batch_of(rank)
    routing, probs = deep_ep.hybrid_ep_buffer.indices_to_map(
        batch.ids, oracle.weights_of(batch), len(batch.ids), EXPERTS
    )
    rows = 4 * 16 * rank.size * TOPK if non_blocking else None

    class Send(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, probs):
            tokens, row_probs, _, counts, handle = buffer.dispatch_with_permute(
                hidden=x,
                routing_map=routing,
                probs=probs,
                scaling_factor=None,
                num_of_experts_per_rank=EXPERTS // rank.size,
                pad_multiple=4,
                num_permuted_tokens=rows,
                non_blocking=non_blocking,
            )
            ctx.handle = handle
            return tokens, row_probs, counts, handle

        @staticmethod
        def backward(ctx, grad, grad_probs, _counts, _handle):
            return buffer.combine_with_unpermute(hidden=grad, probs=grad_probs, handle=ctx.handle, pad_multiple=4)

    class Return(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, handle, many):
            ctx.handle, ctx.many = handle, many
            return buffer.combine_with_unpermute(hidden=y, handle=handle, pad_multiple=4)[0]

        @staticmethod
        def backward(ctx, grad):
            moved, *_ = buffer.dispatch_with_permute(
                hidden=grad.contiguous(), handle=ctx.handle, pad_multiple=4, num_permuted_tokens=ctx.many
            )
            return moved, None, None

    x, probs = batch.x.float().requires_grad_(), probs.requires_grad_()
    tokens, row_probs, counts, handle = Send.apply(x, probs)
    assert int(handle[-1]) == 0
    factor = torch.zeros(len(tokens), 1)
    ends = torch.cumsum(counts, 0).tolist()
    for local, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        factor[start:end] = local + 1 + oracle.first_expert(rank.rank, rank.size, EXPERTS)
    many = counts.sum() if rows is None else rows
    out = Return.apply(tokens * row_probs[:, None] * factor, handle, many)
    out.sum().backward()
    assert torch.allclose(out, dense(batch), rtol=1e-5)
    slope = (oracle.weights_of(batch) * (batch.ids + 1)).sum(dim=1, keepdim=True)
    same(x.grad, slope.expand(x.shape).contiguous(), "gradient of x")
    want = torch.where(routing, x.detach().sum(dim=1, keepdim=True) * (torch.arange(EXPERTS) + 1), 0.0)
    assert torch.allclose(probs.grad, want), "gradient of probs"


@pytest.mark.hybrid
@pytest.mark.parametrize("non_blocking", [False, True])
def test_megatron_hybrid(world, non_blocking):
    world.run(megatron_hybrid_body, non_blocking, ranks=min(world.size, 4) if 12 % min(world.size, 4) == 0 else 1)
