"""The Python API itself: arguments, results, ownership of memory, errors."""

import gc
import pickle
import weakref

import heddle
import numpy as np
import pytest
import ranks

IDS = np.array([[0, 1], [1, -1], [-1, -1]])


@pytest.fixture
def alone():
    """A buffer of one rank."""
    with heddle.Buffer(heddle.in_process(1)[0], experts=2, max_tokens=4) as buffer:
        yield buffer


def test_plan_says_where_tokens_go(alone):
    plan = alone.plan(IDS)
    assert (plan.tokens, plan.topk) == (3, 2)
    assert plan.ids.dtype == np.int32 and np.array_equal(plan.ids, IDS)
    assert plan.is_token_in_rank.dtype == bool and plan.is_token_in_rank.ravel().tolist() == [True, True, False]
    assert plan.num_tokens_per_rank.tolist() == [2]
    assert plan.num_tokens_per_expert.tolist() == [1, 2] == plan.num_rows_per_expert.tolist()


def test_a_plans_tensor_outlives_the_plan(alone):
    ids = alone.plan(IDS).ids
    gc.collect()
    alone.plan(np.zeros_like(IDS))
    assert np.array_equal(ids, IDS)


def test_results_outlive_the_buffer():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        received = buffer.dispatch(buffer.plan(IDS), np.full((3, 4), 7, np.float32))
    x = received.x
    del received, buffer
    gc.collect()
    assert (x == 7).all()


def test_results_are_writable_and_made_once(alone):
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32))
    received.x[:] = 5
    assert received.x is received.x and (received.x == 5).all()


def test_a_split_call_that_nobody_receives_keeps_its_arrays(alone):
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32), fixed_size=True)

    def send(out):
        return alone.combine_send(received.handle, received.x, out=out)

    out = np.full((3, 4), np.nan, np.float32)
    lost = weakref.ref(out)
    send(out)
    del out
    gc.collect()
    assert lost() is not None and np.isnan(lost()).all()
    send(np.empty((3, 4), np.float32)).receive()
    alone.combine(received.handle, received.x)  # takes the lane of the first, and so receives it
    assert (lost()[:2] == 1).all()
    for _ in range(2):
        send(np.empty((3, 4), np.float32)).receive()
    gc.collect()
    assert lost() is None


def test_arrays_are_let_go_at_the_receive(alone):
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32), fixed_size=True)
    out = np.empty((3, 4), np.float32)
    seen = weakref.ref(out)
    sent = alone.combine_send(received.handle, received.x, out=out)
    sent.receive()
    assert (out[:2] == 1).all()
    del out, sent
    gc.collect()
    assert seen() is None


def test_combine_writes_to_out_and_adds_biases(alone):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    received = alone.dispatch(alone.plan(IDS), x)
    out = np.full((3, 4), np.nan, np.float32)
    bias = np.full((3, 4), 10, np.float32)
    combined = alone.combine(received.handle, received.x, bias=(bias, 2 * bias), out=out)
    assert combined.x is out
    assert np.array_equal(out[:2], x[:2] + 30) and (out[2] == 30).all()


def test_read_only_and_strided_arrays_are_accepted(alone):
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)
    wide.flags.writeable = False
    for x in (wide[:, ::2], wide[:, :4], wide[::-1, :4], np.asfortranarray(wide[:, :4])):
        received = alone.dispatch(alone.plan(IDS), x)
        assert np.array_equal(received.x, x[:2])
    with pytest.raises(heddle.UsageError, match="out"):
        alone.combine(received.handle, received.x, out=wide[:, :4])


def test_bfloat16_and_float8_cross_as_bits(alone):
    one = np.full((3, 16), 0x3F80, np.uint16)  # 1.0
    received = alone.dispatch(alone.plan(IDS), one, dtype="bfloat16")
    assert received.x.dtype == np.uint16 and received.x_dtype == "bfloat16"
    combined = alone.combine(received.handle, received.x, dtype="bfloat16", out_dtype=np.float32)
    assert combined.x.dtype == np.float32 and combined.x[:, 0].tolist() == [1, 1, 0]
    received = alone.dispatch(alone.plan(IDS), np.full((3, 16), 56, np.uint8), dtype="float8_e4m3fn")
    assert received.x_dtype == "float8_e4m3fn"
    assert alone.dispatch(alone.plan(IDS), np.full((3, 16), 56, np.uint8)).x_dtype == "uint8"
    with pytest.raises(heddle.UsageError, match="uint16.*dtype="):
        alone.dispatch(alone.plan(IDS), one)


def test_rank_map_routes_without_ids(alone):
    plan = alone.plan_from_rank_map(np.array([[True], [False], [True]]))
    received = alone.dispatch(plan, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert received.row_token.tolist() == [0, 2] and received.ids is None


def test_scales_travel_untouched(alone):
    scales = np.arange(6, dtype=np.uint32).reshape(2, 3).T  # any strides
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 16), np.uint8), scales=scales)
    assert np.array_equal(received.scales, scales[:2])


def test_an_allocator_makes_the_results(alone):
    made = []

    def allocate(dtype, shape):
        made.append(np.empty(shape, dtype))
        return made[-1]

    alone.set_allocator(allocate)
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32))
    assert any(received.x.ctypes.data == array.ctypes.data for array in made)
    with pytest.raises(heddle.UsageError, match="allocator returned"):
        alone.set_allocator(lambda dtype, shape: np.empty([1, *shape], dtype))
        alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32))
    alone.set_allocator(lambda dtype, shape: np.empty(shape, dtype))
    assert alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32)).num_rows == 2


def test_handles_show_the_route(alone):
    handle = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32), layout="expert_major").handle
    assert handle.num_received == 2 and handle.plan.tokens == 3
    assert handle.recv_offset.tolist() == [0, 2] and handle.source_tokens.tolist() == [3]
    assert handle.recv_ids.tolist() == [[0, 1], [1, -1]] and handle.row_of.tolist() == [[0, 1], [2, -1]]


def test_metrics_count_what_was_done(alone):
    received = alone.dispatch(alone.plan(IDS), np.ones((3, 4), np.float32))
    alone.combine(received.handle, received.x)
    metrics = alone.metrics()
    assert (metrics.plans, metrics.dispatch.calls, metrics.combine.calls, metrics.dispatch.rows_sent) == (1, 1, 1, 2)


@pytest.mark.parametrize("what", ["buffer", "plan", "handle"])
def test_pickling_is_a_clear_error(alone, what):
    plan = alone.plan(IDS)
    handle = alone.dispatch(plan, np.ones((3, 4), np.float32)).handle
    with pytest.raises(heddle.UsageError, match="cannot be pickled"):
        pickle.dumps({"buffer": alone, "plan": plan, "handle": handle}[what])


def test_errors_have_a_base_a_code_and_the_builtin_they_resemble():
    for code, error in heddle.errors.BY_CODE.items():
        assert issubclass(error, heddle.Error) and error.code == code
    assert issubclass(heddle.UsageError, ValueError) and issubclass(heddle.TimeoutError_, TimeoutError)
    assert issubclass(heddle.OverflowError_, OverflowError) and issubclass(heddle.SystemError_, OSError)


def test_any_all_gather_will_do():
    """As with mpi4py: only rank, size and an all-gather."""
    inner = heddle.in_process(3, ranks.PATIENCE)

    def body(bootstrap):
        mine = inner[bootstrap.rank]
        group = heddle.from_all_gather(mine.rank, mine.size, mine.all_gather)
        with heddle.Buffer(group, experts=3, timeout=ranks.PATIENCE) as buffer:
            received = buffer.dispatch(buffer.plan(np.array([[0], [1], [2]])), np.ones((3, 4), np.float32))
            group.barrier()
            return received.num_rows

    assert ranks.on_threads(3, body) == [3, 3, 3]


def test_an_exception_of_the_callers_all_gather_comes_out():
    def broken(mine):
        raise LookupError("no network today")

    with pytest.raises(LookupError, match="no network today"):
        heddle.Buffer(heddle.from_all_gather(0, 2, broken), experts=2)
