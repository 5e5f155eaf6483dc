"""Results that cross the wire in another type than the output's: what they lose, and what ranks must agree on."""

import heddle
import numpy as np
import pytest
import ranks

HIDDEN = 300  # two whole blocks of 128, and a short one
TOKENS = 9
LOSS = {"usual": 0.0, "float32": 0.0, "fp8": 0.0625, "logfmt10": 0.017}  # of a value, as the docstring says


def batch(rank):
    rng = np.random.default_rng(rank)
    x = (rng.standard_normal((TOKENS, HIDDEN)) * 2.0 ** rng.integers(-3, 4, (TOKENS, 1))).astype(np.float32)
    return x, rng.permuted(np.tile(np.arange(6), (TOKENS, 1)), axis=1)[:, :3]


@pytest.mark.parametrize("layout", ["token_major", "expert_major"])
@pytest.mark.parametrize("wire", LOSS)
def test_results_lose_what_their_wire_loses(wire, layout):
    def body(buffer):
        x, ids = batch(buffer.rank)
        received = buffer.dispatch(buffer.plan(ids), x, layout=layout)
        bias = np.full((TOKENS, HIDDEN), 0.5, np.float32)
        y = buffer.combine(received.handle, received.x, bias=bias, wire=wire).x
        if wire == "float32" or wire == "usual":
            parts = 3 if layout == "expert_major" else np.array([len(set(row // 3)) for row in ids])[:, None]
            np.testing.assert_allclose(y, 0.5 + parts * x, rtol=1e-6, atol=1e-6)
            return
        exact = buffer.combine(received.handle, received.x, bias=bias).x
        sums = np.abs(exact - bias)
        assert np.all(np.abs(y - exact) <= LOSS[wire] * sums + 2.0**-17 * sums.max() + 1e-6)
        assert not np.array_equal(y, exact), "nothing was narrowed"

    ranks.buffers(2, body, experts=6, max_tokens=TOKENS)


def test_split_rows_that_travel_alone_are_narrow_too():
    def body(buffer):
        x, ids = batch(buffer.rank)
        weights = np.random.default_rng(7).random(ids.shape, np.float32)
        received = buffer.dispatch(buffer.plan(ids), x, layout="slab", fixed_size=True)
        exact = buffer.combine(received.handle, received.x, weights=weights).x
        y = buffer.combine_send(received.handle, received.x, weights=weights, wire="logfmt10").receive().x
        assert np.all(np.abs(y - exact) <= 0.018 * np.abs(exact) + 1e-4)
        assert not np.array_equal(y, exact)

    ranks.buffers(2, body, experts=6, max_tokens=TOKENS)


def test_an_unknown_wire_is_named_and_harms_nobody():
    def body(buffer):
        x, ids = batch(buffer.rank)
        received = buffer.dispatch(buffer.plan(ids), x)
        if buffer.rank == 0:
            with pytest.raises(heddle.UsageError, match="wire is 'fp4', legal: 'usual', 'float32', 'fp8', 'logfmt10'"):
                buffer.combine(received.handle, received.x, wire="fp4")
        else:
            with pytest.raises(heddle.RefusedError, match="wire"):
                buffer.combine(received.handle, received.x)
        assert np.isfinite(buffer.combine(received.handle, received.x).x).all()

    ranks.buffers(2, body, experts=6)


def test_ranks_that_disagree_hear_of_it():
    def body(buffer):
        x, ids = batch(buffer.rank)
        received = buffer.dispatch(buffer.plan(ids), x)
        with pytest.raises(heddle.MismatchError):
            buffer.combine(received.handle, received.x, wire=["fp8", "logfmt10"][buffer.rank])
        buffer.reset()
        return buffer.dispatch(buffer.plan(ids), x).num_rows

    assert len(ranks.buffers(2, body, experts=6)) == 2
