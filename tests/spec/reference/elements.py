"""Casts and the fused multiply-add, over whole arrays. 16-bit floats are kept as their bits."""

import numpy as np

np.seterr(invalid="ignore", over="ignore")  # infinities and NaN are among the inputs

NONE, FP8, FP8_POW2, FP8_UE8M0 = range(4)
F16, BF16, F32 = 3, 4, 5  # DType in include/heddle/dtype.hpp


def widen(bits, dtype):
    if dtype == BF16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == F16 else bits.view(np.float32)


def narrow(values, dtype):
    """To nearest even; a NaN becomes positive with all ones below the sign."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == F32:
        return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))
    if dtype == F16:
        return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))
    # The two neighbours of the exact value in bf16, and the nearer of them; the even one if both are as near.
    low = values.view(np.uint32) >> 16
    near = [widen((low + step).astype(np.uint16), BF16).astype(np.float64) for step in (0, 1)]
    near[1] = np.where(np.isfinite(near[0]) & np.isinf(near[1]), np.copysign(2.0**128, values), near[1])
    below, above = (np.abs(n - values.astype(np.float64)) for n in near)
    up = (above < below) | ((above == below) & (low % 2 == 1))
    return np.where(np.isnan(values), np.uint32(0x7FFF), low + up).astype(np.uint16)


def e4m3_table():
    """The values of the codes 0 to 0x7E."""
    code = np.arange(0x7F)
    exponent, mantissa = code // 8, code % 8
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def to_e4m3(values):
    """To the nearest code, the even one of two; beyond 448 is 448; NaN is 0x7F."""
    table = e4m3_table()
    magnitude = np.where(np.isnan(values), 0, np.minimum(np.abs(values), 448)).astype(np.float64)
    above = np.searchsorted(table, magnitude)
    below = np.maximum(above - 1, 0)
    up, down = table[above] - magnitude, magnitude - table[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return np.where(np.isnan(values), 0x7F, code + 128 * np.signbit(values)).astype(np.uint8)


def fma(a, b, c):
    """a * b + c in f32, rounded once: exact product in f64, sum rounded to odd there, then to f32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    odd = total.view(np.int64) % 2 == 1
    toward = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error == 0) | odd, total, toward).astype(np.float32)


def quantise(rows, form):
    """rows [n][H] f32 -> codes [n][H] u8, scales [n][words] u32."""
    n, hidden = rows.shape
    blocks = -(-hidden // 128)
    padded = np.zeros((n, blocks * 128), np.float32)
    padded[:, :hidden] = rows
    padded = padded.reshape(n, blocks, 128)
    largest = np.maximum(np.where(np.isfinite(padded), np.abs(padded), 0).max(axis=2), np.float32(1e-4))
    scale = largest * np.array(0x3B124925, np.uint32).view(np.float32)
    multiplier = np.float32(448) / largest
    if form != FP8:
        bits = scale.view(np.uint32)
        scale = (((bits >> 23) + (bits % (1 << 23) != 0)) << 23).astype(np.uint32).view(np.float32)
        multiplier = np.float32(1) / scale
    codes = to_e4m3(padded * multiplier[:, :, None]).reshape(n, blocks * 128)[:, :hidden]
    words = scale.view(np.uint32)
    if form == FP8_UE8M0:
        exponents = np.zeros((n, -(-blocks // 4) * 4), np.uint8)
        exponents[:, :blocks] = words >> 23
        words = exponents.view("<u4")
    return codes, words
