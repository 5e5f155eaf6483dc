"""Results in torch's memory: as on a GPU, here on the CPU, where an allocator of torch's has to be asked for."""

import gc
import weakref

import heddle
import pytest
import ranks
from heddle.arguments import dispatch_options

torch = pytest.importorskip("torch")

IDS = torch.tensor([[0, 2], [1, -1], [2, 2]])
DTYPES = [getattr(torch, name) for name in "bfloat16 float16 float32 float8_e4m3fn float8_e5m2 uint8 int32".split()]


def buffer_with(make, **settings):
    buffer = heddle.Buffer(heddle.in_process(1)[0], experts=3, max_tokens=4, **settings)
    if make != "heddle's":
        buffer._core.set_torch_allocator(make)
    return buffer


MAKERS = {"torch's C functions": None, "a function": lambda dtype, shape: torch.empty(shape, dtype=dtype)}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["token_major", "expert_major", "slab"])
def test_results_are_the_same_in_either_memory(layout, dtype, maker):
    x = torch.arange(96).view(3, 32).to(dtype)
    weights, scales = torch.rand(3, 2), torch.rand(3, 5)
    results = []
    for make in ("heddle's", MAKERS[maker]):
        with buffer_with(make) as buffer:
            received = buffer.dispatch(
                buffer.plan(IDS), x, weights=weights, scales=scales, layout=layout, zero_padding=True
            )
            results.append(received.tensors())
    for one, other in zip(*results, strict=True):
        if one is None:
            assert other is None
            continue
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        if one is not results[0][1]:  # scales of no row are not set
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_storages_are_torchs_own():
    """So that record_stream() guards them, and a program may give one back by resize_()."""
    with buffer_with(None) as buffer:
        options = dispatch_options(layout="slab", quantise="fp8", max_tokens=4)
        made = buffer.dispatch_slab(IDS, torch.ones(3, 256, dtype=torch.bfloat16), options)[0]
        x, scales, count, places, ranges, *_ = made
        assert scales.stride() == (8, 1, 4) and places.shape == (3, 4)
        storages = [one.untyped_storage() for one in (x, scales, count, places, ranges)]
        assert all(storage.resizable() for storage in storages)
        assert len({storage.data_ptr() for storage in storages}) == 5
        storages[0].resize_(0)
        assert ranges.shape == (3, 1) and count.tolist() == [1, 1, 2]


def test_memory_goes_with_the_last_tensor_of_it():
    with buffer_with(None) as buffer:
        options = dispatch_options(layout="slab", quantise="fp8", max_tokens=4)
        made = buffer.dispatch_slab(IDS, torch.ones(3, 256, dtype=torch.bfloat16), options)[0]
        watched = [weakref.ref(one) for one in made[:5]]
        del made
        assert [watch() for watch in watched] == [None] * 5
        received = buffer.dispatch(buffer.plan(IDS), torch.ones(3, 32), scales=torch.rand(3, 5), layout="slab")
        watched = [weakref.ref(one) for one in received.tensors() if one is not None]
        assert len(watched) >= 8 and all(watch() is not None for watch in watched)
        del received
        assert not any(watch() is not None for watch in watched)


def test_a_result_outlives_the_buffer():
    with buffer_with(None) as buffer:
        received = buffer.dispatch(buffer.plan(IDS), torch.full((3, 32), 7.0))
        x, again = received.x, received._core.x(True)
    del received, buffer
    gc.collect()
    assert bool((x == 7).all()) and again.data_ptr() == x.data_ptr()


def test_what_torch_cannot_make_is_said_by_torch():
    def too_much(dtype, shape):
        raise RuntimeError("no memory today")

    with buffer_with(too_much) as buffer:
        plan = buffer.plan(IDS)
        with pytest.raises(RuntimeError, match="no memory today"):
            buffer.dispatch(plan, torch.ones(3, 32))
        buffer._core.set_torch_allocator(None)
        assert buffer.dispatch(plan, torch.ones(3, 32)).x.shape == (3, 32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", ["slab", "token_major"])
def test_few_outputs_are_those_of_a_whole_call(layout, weighted):
    """dispatch_slab() and dispatch_tokens() leave out tensors, not values."""
    x, weights = torch.arange(96.0).view(3, 32), torch.rand(3, 2) if weighted else None
    with buffer_with(None) as buffer:
        plan = buffer.plan(IDS)
        whole = buffer.dispatch(plan, x, weights=weights, layout=layout)
        options = dispatch_options(layout=layout)
        if layout == "token_major":
            moved, _, ids, back, counts, ends, token, *_ = buffer.dispatch_tokens(IDS, x, options, weights=weights)
            assert torch.equal(ids, whole.ids) and torch.equal(back, whole.weights)
            assert counts == whole.counts == whole.num_per_expert.tolist() == [1, 1, 3]
            assert ends.tolist() == [[3]] and token.tolist() == [0, 1, 2]
        else:
            (moved, _, count, places, ranges, back, sources, _), _ = buffer.dispatch_slab(
                IDS, x, options, weights=weights
            )
            assert torch.equal(count, whole.num_per_expert) and torch.equal(ranges, whole.layout_range)
            assert torch.equal(places, whole.row_token.view(3, 4))
            assert (back is None) == (sources is None) == (not weighted)
            if weighted:
                assert torch.equal(back, whole.weights.view(3, 4))
                assert torch.equal(sources, whole.row_source.view(3, 4))
            held = places >= 0
            assert torch.equal(moved[held], whole.x[held])
            return
        assert torch.equal(moved, whole.x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_where_a_batch_goes_is_that_of_its_plan(dtype):
    ids = IDS.to(dtype)
    with buffer_with(None) as buffer:
        plan, (per_rank, per_expert, in_rank) = buffer.plan(ids), buffer.reach(ids)
        assert torch.equal(per_rank, plan.num_tokens_per_rank)
        assert torch.equal(per_expert, plan.num_tokens_per_expert) and per_expert.tolist() == [1, 1, 3]
        assert torch.equal(in_rank, plan.is_token_in_rank) and in_rank.dtype == torch.bool
        assert all(one.untyped_storage().resizable() for one in (per_rank, per_expert, in_rank))
        with pytest.raises(heddle.UsageError, match=r"ids\[1\]\[0\] = 3"):
            buffer.reach(torch.tensor([[0], [3]]))


@pytest.mark.parametrize("fixed", [False, True])
def test_wide_ids_are_the_same_numbers(fixed):
    def body(buffer):
        x, plan = torch.ones(3, 32), buffer.plan(IDS)
        narrow = buffer.dispatch(plan, x, fixed_size=fixed)
        wide = buffer.dispatch(plan, x, fixed_size=fixed, wide_ids=True)
        assert narrow.ids.dtype == torch.int32 and wide.ids.dtype == torch.int64
        assert torch.equal(wide.ids, narrow.ids.to(torch.int64))
        again = buffer.dispatch(wide.handle, x, fixed_size=fixed, wide_ids=True)
        assert torch.equal(again.ids, wide.ids)

    ranks.buffers(2, body, experts=3, max_tokens=4)
