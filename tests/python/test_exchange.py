"""torch tensors on their way to C++ and back, with torch's table of DLPack functions and without it."""

import gc

import heddle
import pytest

torch = pytest.importorskip("torch")
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode


class Old(torch.Tensor):
    """As a torch has them that publishes no table."""

    __dlpack_c_exchange_api__ = None


KINDS = {"with the table": lambda tensor: tensor, "without": lambda tensor: tensor.as_subclass(Old)}


def dispatched(x, **options):
    with heddle.Buffer(heddle.in_process(1)[0], experts=1, max_tokens=len(x)) as buffer:
        plan = buffer.plan(torch.zeros(len(x), 1, dtype=torch.int64))
        return buffer.dispatch(plan, x, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.uint8])
def test_every_element_type_comes_back_as_it_went(kind, dtype):
    x = torch.arange(96).view(3, 32).to(dtype)
    got = dispatched(KINDS[kind](x)).x
    assert type(got) is torch.Tensor and got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_dense_is_copied(kind):
    wide = torch.arange(16.0).repeat(6, 2).t().contiguous().t()
    x, weights = KINDS[kind](wide), KINDS[kind](torch.rand(6, 2)[:, :1])
    assert not x.is_contiguous() and x.stride(1) != 1 and not weights.is_contiguous()
    got = dispatched(x, weights=weights)
    assert torch.equal(got.x, wide) and torch.equal(got.weights, weights.as_subclass(torch.Tensor))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_wants_a_gradient(kind):
    x = KINDS[kind](torch.ones(2, 8, requires_grad=True))
    assert not dispatched(x).x.requires_grad


def test_no_rows():
    assert dispatched(torch.empty(0, 8)).x.shape == (0, 8)


def test_a_result_outlives_everything_else():
    received = dispatched(torch.full((4, 8), 7.0))
    x = received.x
    offset = received.handle.recv_offset
    del received
    gc.collect()
    assert (x == 7).all() and offset.tolist() == [0, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_that_heddle_does_not_know_is_named(kind):
    with pytest.raises(heddle.UsageError, match="x is .*64, legal: uint8"):
        dispatched(KINDS[kind](torch.ones(2, 8, dtype=torch.float64)))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_named():
    with FakeTensorMode():
        x = torch.ones(2, 8)
    with pytest.raises(heddle.UsageError, match="x "):
        dispatched(x)


def test_what_is_no_array_is_named():
    with pytest.raises(heddle.UsageError, match="x is a tuple, legal: a NumPy array"):
        dispatched((1, 2))
