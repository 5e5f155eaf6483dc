"""Robustness cases about numbers: quantised rows, and sums that do not depend on who else is there."""

import heddle
import numpy as np
import pytest
import ranks

HIDDEN = 256


def bits(values):
    """float32 to bfloat16 bits, to nearest even."""
    words = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def values(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def e4m3(codes):
    """What float8_e4m3fn bytes stand for."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 0xF, codes & 7
    number = np.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent.astype(int) - 7), mantissa / 8 * 2.0**-6)
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * number)


def rows():
    rng = np.random.default_rng(19)
    special = [0.0, 1e-30, 3e38, 448.0, 449.0, -0.0, -3.0, np.float32(1e-40), np.inf, -np.inf, np.nan]
    table = rng.standard_normal((len(special) + 2, HIDDEN)).astype(np.float32)
    table[0] = 0
    table[1] = 1e-30
    for row, number in enumerate(special[2:], 2):
        table[row, 5] = number
    return values(bits(table))


@pytest.mark.parametrize("how", ["fp8", "fp8_pow2", "fp8_ue8m0"])
def test_case_19_quantised_rows(how):
    """Scales are finite and positive, errors small, signs kept; Inf and NaN stay in their token and block."""
    x = rows()
    with heddle.Buffer(heddle.in_process(1)[0], experts=1) as buffer:
        plan = buffer.plan(np.zeros((len(x), 1), int))
        received = buffer.dispatch(plan, bits(x), dtype="bfloat16", quantise=how)
        empty = buffer.dispatch(buffer.plan(np.empty((0, 1), int)), bits(x[:0]), dtype="bfloat16", quantise=how)
    assert empty.x.shape == (0, HIDDEN) and received.x_dtype == "float8_e4m3fn"
    if how == "fp8_ue8m0":
        exponents = np.ascontiguousarray(received.scales).view(np.uint8)[:, :2]
        scales = 2.0 ** (exponents.astype(int) - 127)
    else:
        scales = received.scales.astype(np.float64)
    assert np.isfinite(scales).all() and (scales > 0).all()
    if how != "fp8":
        assert (np.log2(scales) == np.round(np.log2(scales))).all()
    got = e4m3(received.x) * np.repeat(scales, 128, axis=1)
    finite = np.isfinite(x)
    assert (got[0] == 0).all()
    allowed = np.maximum(np.abs(x) * 2.0**-4, np.repeat(scales, 128, axis=1) * 2.0**-9)
    error = np.abs(np.where(finite, got, 0) - np.where(finite, x, 0))
    assert (error <= allowed)[finite].all()
    assert (np.sign(got) * np.sign(x) >= 0)[finite].all()
    assert np.isnan(got[np.isnan(x)]).all() and np.isfinite(got[~np.isnan(x)]).all()


def test_case_19_ready_payloads_arrive_byte_for_byte():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (6, HIDDEN), np.uint8)
    scales = rng.integers(0, 2**32, (6, 8), np.uint32)

    def body(buffer):
        plan = buffer.plan(np.tile([0, 1], (6, 1)))
        for given in (scales, np.asfortranarray(scales), scales.view(np.float32), np.repeat(scales, 2, axis=1)[:, ::2]):
            for dtype in (None, "float8_e4m3fn"):
                received = buffer.dispatch(plan, x, scales=given, dtype=dtype)
                assert np.array_equal(received.x, np.tile(x, (2, 1)))
                assert np.array_equal(np.ascontiguousarray(received.scales).view(np.uint32), np.tile(scales, (2, 1)))

    ranks.buffers(2, body, experts=2)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_case_23_sums_are_rounded_as_documented(size):
    """To the bit: an FP32 chain over ranks ascending from +0, parts in bfloat16, one rounding at the end. Near FP64."""
    rng = np.random.default_rng(size)
    outputs = [values(bits(rng.standard_normal((5 * size, HIDDEN)) * 10.0 ** rng.integers(-3, 4))) for _ in range(size)]

    def body(buffer):
        x = np.zeros((5, HIDDEN), np.uint16)
        received = buffer.dispatch(buffer.plan(np.tile(np.arange(size), (5, 1))), x, dtype="bfloat16")
        combined = buffer.combine(received.handle, bits(outputs[buffer.rank]), dtype="bfloat16")
        mine = [output[5 * buffer.rank : 5 * buffer.rank + 5] for output in outputs]
        chain = np.zeros((5, HIDDEN), np.float32)
        for part in mine:
            chain = chain + part
        assert np.array_equal(combined.x, bits(chain))
        exact = np.sum(np.stack(mine).astype(np.float64), axis=0)
        largest = np.abs(np.stack(mine)).max(axis=0)
        assert (np.abs(values(combined.x) - exact) <= np.abs(exact) * 2.0**-8 + size * largest * 2.0**-23).all()

    ranks.buffers(size, body, experts=size)


def test_case_23_same_call_same_bits_whoever_else_is_there():
    """A token's result depends on neither its neighbours, its place, nor the run; nor on how ranks share the batch."""
    rng = np.random.default_rng(23)
    tokens = rng.standard_normal((24, HIDDEN)).astype(np.float32)
    ids = rng.integers(0, 6, (24, 3))
    weights = rng.random((24, 3)).astype(np.float32)
    factors = rng.standard_normal(6).astype(np.float32)

    def call(buffer, which):
        received = buffer.dispatch(
            buffer.plan(ids[which]), tokens[which], weights=weights[which], layout="expert_major"
        )
        y = received.x.copy()
        for local, expert in enumerate(buffer.local_experts):
            begin, end = received.expert_offsets[local], received.expert_offsets[local + 1]
            y[begin:end] *= factors[expert]
        return buffer.combine(received.handle, y, weighted=True).x

    def body(buffer):
        everybody = np.arange(24)
        first = call(buffer, everybody[buffer.rank :: 2])
        for _ in range(20):
            assert np.array_equal(call(buffer, everybody[buffer.rank :: 2]), first)
        turned = call(buffer, everybody[buffer.rank :: 2][::-1])
        assert np.array_equal(turned[::-1], first)
        halves = call(buffer, everybody[:17] if buffer.rank == 0 else everybody[17:])
        alone = call(buffer, everybody[buffer.rank :: 2][:1])
        assert np.array_equal(alone[0], first[0])
        return first, halves

    (even, first_part), (odd, second_part) = ranks.buffers(2, body, experts=6)
    together = np.concatenate([first_part, second_part])
    assert np.array_equal(together[0::2], even) and np.array_equal(together[1::2], odd)
