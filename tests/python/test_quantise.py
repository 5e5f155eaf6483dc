"""Rows that are quantised on their way, against the spec's rows, in each layout and both layouts of scales."""

import heddle
import numpy as np
import pytest
from heddle import _core
from heddle.arguments import dispatch_options

HIDDEN = 544  # neither whole blocks of 128, nor a whole word of 4 x 32
TOKENS = 140  # of one rank: more than a tile's 128 rows
GAIN = np.array(100.0, np.float32)


def rows():
    rng = np.random.default_rng(23)
    numbers = (4 * rng.standard_normal((TOKENS, HIDDEN))).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def wanted(x, how):
    """(values, scale bytes) of each row, by the spec."""
    gain = float(GAIN) if how == "nvfp4" else 1.0
    pairs = [_core.spec.quantise_row(dispatch_options(quantise=how), row, gain) for row in x]
    return np.stack([values for values, _ in pairs]), np.stack([scales for _, scales in pairs])


def dispatched(x, how, **options):
    gain = {"global_scale": GAIN} if how == "nvfp4" else {}
    with heddle.Buffer(heddle.in_process(1)[0], experts=1, max_tokens=len(x)) as buffer:
        plan = buffer.plan(np.zeros((len(x), 1), int))
        return buffer.dispatch(plan, x, dtype="bfloat16", quantise=how, **gain, **options)


@pytest.mark.parametrize("layout", ["token_major", "expert_major", "slab"])
@pytest.mark.parametrize("how", ["fp8_row", "mxfp8", "nvfp4"])
def test_rows_and_scales_are_the_specs(how, layout):
    x = rows()
    received = dispatched(x, how, layout=layout)
    values, scales = wanted(x, how)
    assert received.x_dtype == ("uint8" if how == "nvfp4" else "float8_e4m3fn")
    assert received.scales.dtype == (np.float32 if how == "fp8_row" else np.int32)
    assert np.array_equal(received.x.reshape(values.shape), values)
    assert np.array_equal(np.ascontiguousarray(received.scales).view(np.uint32).reshape(scales.shape), scales)


@pytest.mark.parametrize("layout", ["expert_major", "slab"])
@pytest.mark.parametrize("how", ["fp8_ue8m0", "mxfp8", "nvfp4"])
def test_tiles_hold_the_same_scales(how, layout):
    x = rows()
    tiles = dispatched(x, how, layout=layout, scale_layout="tiles").scales
    scales = wanted(x, how)[1]
    assert tiles.shape[-4:] == (2, scales.shape[1], 32, 4)
    by_row = tiles.reshape(2, -1, 32, 4).transpose(0, 3, 2, 1).reshape(256, -1)[:TOKENS]
    assert np.array_equal(np.ascontiguousarray(by_row).view(np.uint32), scales)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"how": "fp8", "scale_layout": "tiles"}, "scale_layout"),
        ({"how": "fp9"}, "quantise is 'fp9', legal: .*'mxfp8', 'nvfp4'"),
        ({"how": "mxfp8", "scale_layout": "128x4"}, "scale_layout is '128x4', legal: 'usual', 'tiles'"),
        ({"how": "mxfp8", "global_scale": GAIN}, "global_scale"),
    ],
)
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(heddle.UsageError, match=message):
        dispatched(rows(), **options)
