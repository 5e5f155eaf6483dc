"""What narrower results are once they have crossed the wire: ResultWire's fp8 and logfmt10, over whole arrays."""

import numpy as np
from reference.elements import e4m3_table, to_e4m3

UNPACKED, PACK_FP8, PACK_LOGFMT10 = range(3)
OCTAVE, INF = 1 << 23, 0x7F800000


def packed_and_back(rows, pack):
    """rows [n][H] f32, each in blocks of 128 columns."""
    n, hidden = rows.shape
    blocks = -(-hidden // 128)
    padded = np.zeros((n, blocks * 128), np.float32)
    padded[:, :hidden] = rows
    padded = padded.reshape(n * blocks, 128)
    whole = np.isfinite(padded).all(axis=1, keepdims=True)
    back = (fp8 if pack == PACK_FP8 else logfmt10)(np.where(whole, padded, 0))
    broken = np.where((padded == 0) & (pack == PACK_LOGFMT10), padded, np.float32(np.nan))
    return np.where(whole, back, broken).reshape(n, blocks * 128)[:, :hidden]


def fp8(x):
    a = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(2.0**-100))
    scale = a * np.array(0x3B124925, np.uint32).view(np.float32)
    codes = to_e4m3(x * (np.float32(448) / a))
    return np.copysign(e4m3_table()[codes & 127].astype(np.float32), x) * scale


def logfmt10(x):
    m = np.abs(x).view(np.uint32).astype(np.int64)
    most = m.max(axis=1, keepdims=True)
    least = np.minimum(np.where(m == 0, INF, m).min(axis=1, keepdims=True), most)
    first = np.maximum(least, np.maximum(most - 16 * OCTAVE, 0)) >> 16 << 16
    step = 8 * (1 + (most - first) // 4080)
    steps = np.maximum(m - first, 0) * ((2**32 - 1) // step) + 2**31 >> 32
    steps = np.minimum(steps, np.minimum(510, (INF - 1 - first) // step))
    number = np.where(m >= first, 1 + steps, np.where(m + OCTAVE >= first, 1, 0))
    bits = np.where((number == 0) | (m == 0), 0, first + (number - 1) * step)
    return np.copysign(bits.astype(np.uint32).view(np.float32), x)
