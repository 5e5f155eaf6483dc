"""The suite itself: packages that are wrong in one way each must fail the test that is meant to see it.

A mutant wraps public methods of the package, in all ranks, for one body of another test.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os

import deep_ep
import pytest
import torch

MUTANTS = {}


def mutant(owner, method, body, *args):
    """Registers `change(result, call)`: what `method` returns instead. `body` is "module:function" with arguments."""

    def register(change):
        MUTANTS[change.__name__] = (owner, method, change, body, args)
        return change

    return register


SIZES = (5, 7, 3, 4)
NORMAL = ("test_v1_normal:round_trip_body", SIZES, 128)
BF16 = ("test_ll:bf16_body", False, SIZES)
FP8 = ("test_ll:fp8_body", False, False, False)
FLAT = ("test_v2:flat_body", SIZES, 128, True, False)
EXPANDED = ("test_v2_expanded:expanded_body", SIZES, 8, True, True)


@mutant("Buffer", "dispatch", *NORMAL)
def rows_in_another_order(result, call):
    return (result[0].flip(0), *result[1:]) if isinstance(result[0], torch.Tensor) else result


@mutant("Buffer", "dispatch", *NORMAL)
def counts_without_alignment(result, call):
    counts = result[3] and [int((result[1] == e).sum()) for e in range(len(result[3]))]
    return (*result[:3], counts, *result[4:])


@mutant("Buffer", "dispatch", *NORMAL)
def counts_as_a_tensor(result, call):
    return (*result[:3], torch.tensor(result[3] or []), *result[4:])


@mutant("Buffer", "dispatch", *NORMAL)
def ids_of_another_type(result, call):
    return (result[0], result[1] if result[1] is None else result[1].int(), *result[2:])


@mutant("Buffer", "dispatch", *NORMAL)
def an_event_of_a_synchronous_call(result, call):
    return (*result[:5], deep_ep.EventOverlap(deep_ep.EventHandle()))


@mutant("Buffer", "dispatch", *NORMAL)
def ids_of_a_cached_dispatch(result, call):
    return (result[0], result[0], *result[2:]) if result[1] is None else result


@mutant("Buffer", "dispatch", "test_v1_normal:worst_body")
def stale_ids_in_the_padding(result, call):
    ids = result[1]
    if ids is not None:
        ids[(ids == -1).all(dim=1)] = 0
    return result


@mutant("Buffer", "combine", *NORMAL)
def a_lost_weight_gradient(result, call):
    return (result[0], None if result[1] is None else torch.zeros_like(result[1]), result[2])


@mutant("Buffer", "combine", *NORMAL)
def sums_of_half_the_ranks(result, call):
    return (result[0] / 2, *result[1:])


@mutant("Buffer", "combine", "test_v1_normal:bias_body")
def a_second_bias_that_is_lost(result, call):
    bias = call.get("bias")
    return (result[0] - bias[1], *result[1:]) if isinstance(bias, tuple) else result


@mutant("Buffer", "combine", "test_v1_autograd:tuple_body")
def a_handle_that_combine_changes(result, call):
    handle = call.get("handle") or call["positional"][1]
    handle[2].add_(1)
    return result


@mutant("Buffer", "get_dispatch_layout", "test_v1_normal:layout_body", SIZES)
def a_layout_one_off(result, call):
    return (result[0] + 1, *result[1:])


@mutant("Buffer", "low_latency_dispatch", *FP8)
def scales_row_major(result, call):
    q, scales = result[0]
    return ((q, scales.contiguous()), *result[1:])


@mutant("Buffer", "low_latency_dispatch", *FP8)
def scales_by_a_quotient(result, call):
    q, scales = result[0]
    largest = (scales.double() * 448).float()
    changed = torch.nextafter(largest / 448, torch.full_like(largest, 1e9))
    return ((q, changed.transpose(1, 2).contiguous().transpose(1, 2)), *result[1:])


@mutant("Buffer", "low_latency_dispatch", "test_ll:fp8_body", False, True, True)
def exponents_in_another_byte_order(result, call):
    words = result[0][1]
    dense = words.clone(memory_format=torch.contiguous_format)
    words.copy_(dense.view(torch.uint8).unflatten(2, (-1, 4)).flip(3).flatten(2).contiguous().view(torch.int32))
    return result


@mutant("Buffer", "low_latency_dispatch", "test_ll_fp4:by_powers_body")
def powers_of_two_rounded_up_once_more(result, call):
    scales = result[0][1]
    scales.copy_(torch.where(scales > 0, scales + 1, scales))
    return result


@mutant("Buffer", "low_latency_dispatch", *BF16)
def a_count_one_off(result, call):
    return (result[0], result[1] + 1, *result[2:])


@mutant("Buffer", "low_latency_dispatch", *BF16)
def a_hook_that_nobody_asked_for(result, call):
    return (*result[:4], lambda: None)


@mutant("Buffer", "low_latency_dispatch", *BF16)
def source_tokens_one_off(result, call):
    result[2][0].add_(1)
    return result


@mutant("Buffer", "low_latency_combine", *BF16)
def a_weight_too_much(result, call):
    return (result[0] * 1.25, *result[1:])


@mutant("ElasticBuffer", "dispatch", *FLAT)
def a_prefix_sum_one_off(result, call):
    handle = result[3]
    handle.psum_num_recv_tokens_per_expert = handle.psum_num_recv_tokens_per_expert + 1
    return result


@mutant("ElasticBuffer", "dispatch", *FLAT)
def a_handle_that_is_the_output(result, call):
    result[3].alias = (result[1], result[1].clone())
    return result


@mutant("ElasticBuffer", "dispatch", *FLAT)
def statistics_that_are_lost(result, call):
    stats = call.get("cumulative_local_expert_recv_stats")
    if stats is not None:
        stats.fill_(1)
    return result


@mutant("ElasticBuffer", "dispatch", "test_v2:flat_body", SIZES, 128, False, False)
def a_list_without_a_wait(result, call):
    result[3].num_recv_tokens_per_expert_list = [1]
    return result


@mutant("ElasticBuffer", "dispatch", *EXPANDED)
def padding_that_is_not_zero(result, call):
    result[2][result[2] == 0] = 9
    return result


@mutant("ElasticBuffer", "dispatch", *EXPANDED)
def ids_of_an_expanded_layout(result, call):
    return (result[0], torch.zeros(1), *result[2:])


@mutant("ElasticBuffer", "engram_fetch", "test_experimental:engram_scales_body", torch.float32)
def scales_of_a_table_row_major(result, call):
    def hook():
        rows, scales = result()
        return rows, scales.contiguous()

    return hook


@mutant("EPBuffer", "combine", "test_v25:deferred_body")
def a_deferred_call_that_ran_early(result, call):
    if isinstance(result, deep_ep.EventOverlap):
        values = result.current_stream_wait()
        result.register_hook_after_wait(lambda: values)
    return result


@mutant("HybridEPBuffer", "dispatch_with_permute", "test_hybrid:fixed_body", 8)
def an_overflow_that_is_not_told(result, call):
    return (*result[:4], (*result[4][:10], torch.zeros(1, dtype=torch.int32)))


@mutant("HybridEPBuffer", "dispatch_with_permute", "test_hybrid:blocking_body", "map", 32, SIZES)
def counts_without_padding(result, call):
    return (*result[:3], None if result[3] is None else result[4][7].to(torch.int64), result[4])


def wrapped(original, change):
    @functools.wraps(original)
    def method(self, *positional, **call):
        handle = call.get("handle") or (positional[1] if len(positional) > 1 else None)
        alias = getattr(handle, "alias", None)
        result = original(self, *positional, **call)
        if alias is not None and not torch.equal(*alias):
            return (torch.zeros_like(result[0]), *result[1:])
        return change(result, {**call, "positional": positional})

    return method


def quick_engine():
    """Ranks whose partner failed already need not wait for long."""
    with contextlib.suppress(ImportError):
        from deep_ep.engine import Engine

        original = Engine.__init__
        Engine.__init__ = lambda self, *args, **settings: original(self, *args, **{**settings, "timeout": 2.0})
        return Engine, original
    return None, None


def mutated_body(rank, name, is_sound=False):
    """Whether the body fails here, as it should."""
    importlib.import_module("test_mutants")
    owner_name, method, change, body, args = MUTANTS[name]
    change = nothing if is_sound else change
    module, function = body.split(":")
    owner = getattr(deep_ep, owner_name)
    original, combine = getattr(owner, method), getattr(owner, "combine", None)
    engine, made = (None, None) if is_sound else quick_engine()
    before = os.environ["HEDDLE_DEEP_EP_TIMEOUT"]
    if not is_sound:
        os.environ["HEDDLE_DEEP_EP_TIMEOUT"] = "2"
    setattr(owner, method, wrapped(original, change))
    if "alias" in change.__code__.co_names:
        owner.combine = wrapped(combine, lambda result, call: result)
    try:
        getattr(importlib.import_module(module), function)(rank, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        setattr(owner, method, original)
        if combine is not None:
            owner.combine = combine
        if engine is not None:
            engine.__init__ = made
        os.environ["HEDDLE_DEEP_EP_TIMEOUT"] = before
    return None


BY_API = {"Buffer": "v1", "ElasticBuffer": "v2", "EPBuffer": "v25", "HybridEPBuffer": "hybrid"}


def marked(name):
    owner, method = MUTANTS[name][:2]
    api = "ll" if method.startswith("low_latency") else BY_API[owner]
    return pytest.param(name, marks=getattr(pytest.mark, api))


@pytest.mark.parametrize("name", [marked(name) for name in MUTANTS])
def test_a_wrong_package_is_found(world, name):
    said = world.run(mutated_body, name, ranks=min(2, world.size))
    assert any(text and not text.startswith("TimeoutError_") for text in said), f"nobody saw {name}: {said}"


def nothing(result, call):
    return result


@pytest.mark.parametrize("name", [marked(name) for name in MUTANTS])
def test_the_package_passes_where_nothing_is_wrong(world, name):
    """The wrapping itself must not be what a test sees."""
    said = world.run(mutated_body, name, True, ranks=min(2, world.size))
    assert not any(said), said
