"""Small programs in the style of the engines that serve models, each against a dense layer."""

import deep_ep
import oracle
import pytest
import torch
from layers import EXPERTS, HIDDEN, TOPK, batch_of, dense, scaled
from slabs import close


def lmdeploy_body(rank):
    """A synchronous layout, whose empty event goes on to dispatch; then decoding with hooks on the same buffer."""
    config = deep_ep.Buffer.get_dispatch_config(rank.size)
    hints = (
        config.get_nvl_buffer_size_hint(HIDDEN * 2, rank.size),
        config.get_rdma_buffer_size_hint(HIDDEN * 2, rank.size),
    )
    low_latency = deep_ep.Buffer.get_low_latency_rdma_size_hint(16, HIDDEN, rank.size, EXPERTS)
    buffer = deep_ep.Buffer(
        rank.group, hints[0] // 16, max(hints[1], low_latency), low_latency_mode=True, num_qps_per_rank=24
    )
    batch = batch_of(rank)
    weights = oracle.weights_of(batch)
    first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
    *layout, event = buffer.get_dispatch_layout(batch.ids, EXPERTS, None, False, False)
    assert event.event is None
    recv_x, ids, recv_weights, _, handle, event = buffer.dispatch(
        batch.x,
        None,
        layout[0],
        layout[1],
        layout[3],
        layout[2],
        batch.ids,
        weights,
        1,
        config=config,
        previous_event=event,
        async_finish=False,
    )
    close(buffer.combine(scaled(recv_x, ids, recv_weights, first), handle)[0], dense(batch), 0.02)
    buffer.clean_low_latency_buffer(16, HIDDEN, EXPERTS)
    for _ in range(2):
        slab, count, handle, _, hook = buffer.low_latency_dispatch(
            batch.x, batch.ids, 16, EXPERTS, use_fp8=False, async_finish=False, return_recv_hook=True
        )
        hook()
        factor = (torch.arange(slab.shape[0]) + first + 1)[:, None, None]
        out, _, hook = buffer.low_latency_combine(
            (slab * factor).to(slab.dtype), batch.ids, weights, handle, async_finish=False, return_recv_hook=True
        )
        hook()
        close(out, dense(batch), 0.02)


@pytest.mark.ll
def test_lmdeploy(world):
    world.run(lmdeploy_body)


def vllm_body(rank):
    """FP8 slabs with two micro-batches in flight; combine writes to memory of the caller's."""
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=16, hidden=HIDDEN, num_ranks=rank.size, num_experts=EXPERTS
    )
    buffer = deep_ep.Buffer(
        group=rank.group,
        num_nvl_bytes=0,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=EXPERTS // rank.size,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=True,
    )
    first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
    halves = [oracle.make_batch(rank.rank, n, hidden=HIDDEN, experts=EXPERTS, seed=n) for n in (7, 16)]
    for _ in range(3):
        sent = [
            buffer.low_latency_dispatch(b.x, b.ids, 16, EXPERTS, use_fp8=True, return_recv_hook=True) for b in halves
        ]
        outs = []
        for (x, _, handle, event, hook), b in zip(sent, halves, strict=True):
            assert event.event is None
            hook()
            q, scales = x
            y = (q.float().unflatten(2, (-1, 128)) * scales[..., None]).flatten(2)
            y = (y * (torch.arange(len(y)) + first + 1)[:, None, None]).to(torch.bfloat16)
            out = torch.empty_like(b.x)
            weights = oracle.weights_of(b)
            _, _, hook = buffer.low_latency_combine(y, b.ids, weights, handle, return_recv_hook=True, out=out)
            outs.append((out, hook, dense(b)))
        for out, hook, wanted in outs:
            hook()
            assert (out.float() - wanted).norm() <= 0.05 * wanted.norm() + 1e-3
    buffer.destroy()


@pytest.mark.ll
def test_vllm(world):
    world.run(vllm_body)


def sglang_body(rank):
    """V2 without a host wait: rows by expert, starts recovered by rounding the previous end up."""
    buffer = deep_ep.ElasticBuffer(
        rank.group,
        num_max_tokens_per_rank=16,
        hidden=HIDDEN,
        num_topk=TOPK,
        prefer_overlap_with_compute=False,
        sl_idx=0,
    )
    batch = batch_of(rank)
    sms = buffer.get_theoretical_num_sms(EXPERTS, TOPK)
    recv_x, ids, weights, handle, event = buffer.dispatch(
        batch.x,
        topk_idx=batch.ids,
        topk_weights=oracle.weights_of(batch),
        num_experts=EXPERTS,
        expert_alignment=8,
        num_sms=sms,
        num_qps=buffer.get_theoretical_num_qps(sms),
        do_expand=True,
        do_cpu_sync=False,
        async_with_compute_stream=True,
    )
    event.current_stream_wait()
    assert ids is None and not handle.num_recv_tokens_per_expert_list
    first = oracle.first_expert(rank.rank, rank.size, EXPERTS)
    y, start = torch.full_like(recv_x, float("nan")), 0
    for local, end in enumerate(handle.psum_num_recv_tokens_per_expert.tolist()):
        rows = slice(start, end)
        y[rows] = (recv_x[rows].float() * weights[rows, None] * (local + first + 1)).to(y.dtype)
        start = oracle.align(end, 8)
    combined, _, event = buffer.combine(y, handle=handle, num_sms=handle.num_sms, async_with_compute_stream=True)
    event.current_stream_wait()
    close(combined, dense(batch), 0.02)


@pytest.mark.v2
def test_sglang(world):
    world.run(sglang_body)
