"""Torch tensors on GPUs: the same results as on the CPU, bit for bit, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from gpus import EXPERTS, TOKENS, batch, bits, host, on_gpus, round_trip, same, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())

NAMES = ("x", "scales", "ids", "weights", "num_per_expert", "expert_offsets", "row_source", "row_token", "layout_range")


@pytest.mark.parametrize("layout", ["token_major", "expert_major", "slab"])
@pytest.mark.parametrize("quantise", ["none", "fp8", "fp8_ue8m0"])
def test_results_are_those_of_the_cpu(layout, quantise):
    options = {"layout": layout, "quantise": quantise}
    settings = {"experts": EXPERTS, "max_tokens": TOKENS}

    def on_cpu(buffer):
        return round_trip(buffer, batch(buffer.rank, wide=buffer.rank == 1), options)

    expected = ranks.buffers(2, on_cpu, **settings)

    def body(buffer, meet):
        tensors = tuple(one.cuda() for one in batch(buffer.rank, wide=buffer.rank == 1))
        settle()
        meet()
        received, combined = round_trip(buffer, tensors, options)
        theirs, back = expected[buffer.rank]
        there = theirs.row_source >= 0
        for name in NAMES:
            seen, wanted = getattr(received, name), getattr(theirs, name)
            assert seen is None or seen.is_cuda, name
            if name == "scales" and seen is not None:  # what belongs to no row is not set
                seen, wanted = (one.reshape(-1, one.shape[-1])[there.to(one.device)] for one in (seen, wanted))
            assert same(seen, wanted), name
        for name in ("recv_offset", "recv_token", "source_tokens", "recv_ids", "status"):
            count = None if name in ("recv_offset", "source_tokens", "status") else theirs.handle.num_received
            assert same(getattr(received.handle, name)[:count], getattr(theirs.handle, name)), name
        assert same(received.handle.plan.num_tokens_per_expert, theirs.handle.plan.num_tokens_per_expert)
        assert same(combined.x, back.x)

    on_gpus(2, body, **settings)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "uint8"])
def test_tensors_keep_their_type(name):
    dtype = getattr(torch, name)

    def body(buffer, meet):
        x = torch.arange(48, device="cuda").reshape(3, 16).to(dtype)
        ids = torch.tensor([[0], [1], [-1]], dtype=torch.int32, device="cuda")
        scales = torch.rand(3, 2, device="cuda")
        received = buffer.dispatch(buffer.plan(ids), x, scales=scales)
        assert received.x.dtype == dtype and received.x is received.x and received.num_rows == 2
        assert torch.equal(bits(host(received.x)), bits(host(x[:2])))
        assert torch.equal(host(received.scales), host(scales[:2]))

    on_gpus(1, body, experts=2)


def test_strided_expanded_and_gradient_tensors_are_accepted():
    def body(buffer, meet):
        plan = buffer.plan(torch.tensor([[0], [1]], device="cuda").expand(2, 3))
        base = torch.arange(66.0, device="cuda").reshape(33, 2)
        shifted = torch.arange(40.0, device="cuda", dtype=torch.bfloat16)[1:33].view(2, 16)  # unaligned by two bytes
        for x in (base[:32].T, base[:32].T[:1].expand(2, 32), base[:32].T.clone().requires_grad_(), shifted):
            assert torch.equal(host(buffer.dispatch(plan, x).x), host(x.detach()))

    on_gpus(1, body, experts=2)


def test_a_tensor_elsewhere_is_refused_on_all_ranks():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        with pytest.raises(heddle.UsageError if buffer.rank == 1 else heddle.RefusedError, match="x") as raised:
            buffer.dispatch(plan, x.cpu() if buffer.rank == 1 else x)
        assert ("x is on cpu, legal: cuda:" in str(raised.value)) == (buffer.rank == 1)
        assert buffer.dispatch(plan, x).num_rows > 0
        with pytest.raises(heddle.UsageError, match="ids is on cpu"):
            buffer.plan(ids.cpu())
        settle()

    on_gpus(2, body, experts=EXPERTS)


def test_the_cpu_takes_no_gpu_tensor_and_no_stream():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        with pytest.raises(heddle.UsageError, match="ids is on cuda:0, legal: cpu"):
            buffer.plan(torch.zeros(3, 1, dtype=torch.int32, device="cuda"))
        plan = buffer.plan(torch.zeros(3, 1, dtype=torch.int32))
        with pytest.raises(heddle.UsageError, match="stream"):
            buffer.dispatch(plan, torch.ones(3, 16), stream=torch.cuda.Stream())


def test_a_bad_id_is_named():
    def body(buffer, meet):
        ids = torch.tensor([[0], [2]], dtype=torch.int64, device="cuda")
        plan = buffer.plan(ids)
        settle()
        with pytest.raises(heddle.UsageError, match=r"ids\[1\]\[0\]"):
            buffer.dispatch(plan, torch.ones(2, 16, device="cuda"))

    on_gpus(1, body, experts=2)


def test_a_handle_is_made_again_from_tensors():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        first = buffer.dispatch(plan, x)
        names = ("recv_offset", "recv_token", "source_tokens", "recv_ids")
        again = buffer.handle(plan, **{name: getattr(first.handle, name).clone() for name in names})
        one, other = buffer.combine(first.handle, first.x).x, buffer.combine(again, first.x).x
        assert torch.equal(host(one), host(other))

    on_gpus(2, body, experts=EXPERTS)


def test_arrays_of_others_come_and_go_by_dlpack():
    cupy = pytest.importorskip("cupy")

    def body(buffer, meet):
        x = cupy.arange(48, dtype=cupy.float32).reshape(3, 16)
        cupy.cuda.get_current_stream().synchronize()
        plan = buffer.plan(cupy.array([[0], [1], [-1]], dtype=cupy.int32))
        received = buffer.dispatch(plan, x)
        assert bool((cupy.from_dlpack(received.x) == x[:2]).all())

    on_gpus(1, body, experts=2)


def test_import_touches_no_gpu():
    program = """
import os, heddle
names = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
assert not [name for name in names if "nvidia" in name], names
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
