"""What is kept for calls of the same types, shapes and choices is found for those, and for no others."""

import gc
import weakref

import pytest
from heddle._core import KnownCalls

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch lends no tensors to C++"
)

X, IDS = torch.zeros(2, 16), torch.zeros(2, 3, dtype=torch.int64)


def known():
    calls = KnownCalls()
    calls.keep("found", X, IDS, 4, 8, True, False)
    return calls


def test_only_the_same_call_is_found():
    calls = known()
    assert calls.find(X.clone(), IDS.clone(), 4, 8, True, False) == "found"
    for other in (
        (X[:1], IDS, 4, 8, True, False),
        (X.view(16, 2), IDS, 4, 8, True, False),
        (X.to(torch.bfloat16), IDS, 4, 8, True, False),
        (X.view(torch.int32), IDS, 4, 8, True, False),
        (X, IDS.to(torch.int32), 4, 8, True, False),
        (X, IDS[:, :2], 4, 8, True, False),
        (X.view(2, 4, 4), IDS, 4, 8, True, False),
        (X, IDS, 8, 4, True, False),
        (X, IDS, 4, 8, False, True),
        (X, IDS, 4, 8, 1, False),
        (X, IDS, 4, 8, True),
        (X, IDS, 4.0, 8, True, False),
        (X, IDS, 1 << 70, 8, True, False),
        (X, None, 4, 8, True, False),
        (X.tolist(), IDS, 4, 8, True, False),
    ):
        assert calls.find(*other) is None, other[2:]


def test_what_cannot_be_told_apart_is_not_kept():
    calls = KnownCalls()
    calls.keep("never found", X, IDS, 4.0)
    calls.keep("never found", None, IDS, 4)
    assert calls.find(X, IDS, 4.0) is None and calls.find(None, IDS, 4) is None


def test_what_is_kept_goes_with_the_calls():
    class Kept:
        pass

    calls, kept = KnownCalls(), Kept()
    calls.keep(kept, X, IDS)
    watch = weakref.ref(kept)
    del kept
    gc.collect()
    assert watch() is not None and calls.find(X, IDS) is watch()
    del calls
    gc.collect()
    assert watch() is None


def test_many_are_kept_and_not_without_end():
    calls = KnownCalls()
    for i in range(3000):
        calls.keep(i, X, IDS, i)
    found = [calls.find(X, IDS, i) for i in range(3000)]
    assert found[-1] == 2999 and 0 < sum(one is not None for one in found) <= 1024
