"""Every name that programs take from deep_ep, and its signature: order, defaults, kinds."""

import inspect
import subprocess
import sys

import deep_ep
import pytest
import torch

pytestmark = pytest.mark.names

TOP = (
    "Buffer ElasticBuffer EPBuffer HybridEPBuffer HybridEpConfigInstance EPHandle EventOverlap EventHandle Config "
    "BufferAllocator BufferBase EngramBuffer PPBuffer BucketBuffer BucketSession topk_idx_t comm __version__ "
    "get_physical_domain_size get_logical_domain_size get_num_allocation_alignment get_num_rdma_alignment "
    "get_num_tma_alignment destroy_all_managed_nccl_comm"
).split()


@pytest.mark.parametrize("name", TOP)
def test_top_level(name):
    assert hasattr(deep_ep, name)


def test_modules_share_their_objects():
    import deep_ep_cpp
    from deep_ep.buffer import Buffer
    from deep_ep.hybrid_ep_buffer import HybridEPBuffer, indices_to_map
    from deep_ep.utils import EventHandle, EventOverlap
    from deep_ep.utils.comm import destroy_all_managed_nccl_comm
    from deep_ep.utils.event import EventHandle as ByFile

    assert EventHandle is deep_ep.EventHandle is deep_ep_cpp.EventHandle is ByFile
    assert EventOverlap is deep_ep.EventOverlap and Buffer is deep_ep.Buffer is deep_ep_cpp.Buffer
    assert deep_ep_cpp.Config is deep_ep.Config and deep_ep_cpp.topk_idx_t is deep_ep.topk_idx_t
    assert HybridEPBuffer is deep_ep.HybridEPBuffer and callable(indices_to_map)
    assert destroy_all_managed_nccl_comm() is None and isinstance(deep_ep.topk_idx_t, torch.dtype)


REQUIRED = inspect.Parameter.empty
# name = default, or name! where there is none; after * by keyword alone.
SIGNATURES = {
    "Buffer": "group! num_nvl_bytes=0 num_rdma_bytes=0 low_latency_mode=False num_qps_per_rank=24 "
    "allow_nvlink_for_low_latency_mode=True allow_mnnvl=False explicitly_destroy=False enable_shrink=False comm=None",
    "Buffer.set_num_sms": "new_num_sms!",
    "Buffer.capture": "",
    "Buffer.is_sm90_compiled": "",
    "Buffer.get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank! hidden! num_ranks! num_experts!",
    "Buffer.get_dispatch_config": "num_ranks!",
    "Buffer.get_combine_config": "num_ranks!",
    "Buffer.get_comm_stream": "self!",
    "Buffer.destroy": "self!",
    "Buffer.get_local_buffer_tensor": "self! dtype! size=None offset=0 use_rdma_buffer=False",
    "Buffer.get_dispatch_layout": "self! topk_idx! num_experts! previous_event=None async_finish=False "
    "allocate_on_comm_stream=False",
    "Buffer.dispatch": "self! x! handle=None num_tokens_per_rank=None num_tokens_per_rdma_rank=None "
    "is_token_in_rank=None num_tokens_per_expert=None topk_idx=None topk_weights=None expert_alignment=1 "
    "num_worst_tokens=0 config=None "
    "previous_event=None async_finish=False allocate_on_comm_stream=False",
    "Buffer.combine": "self! x! handle! topk_weights=None bias=None config=None previous_event=None async_finish=False "
    "allocate_on_comm_stream=False",
    "Buffer.clean_low_latency_buffer": "self! num_max_dispatch_tokens_per_rank! hidden! num_experts!",
    "Buffer.low_latency_dispatch": "self! x! topk_idx! num_max_dispatch_tokens_per_rank! num_experts! "
    "cumulative_local_expert_recv_stats=None dispatch_wait_recv_cost_stats=None use_fp8=True round_scale=False "
    "use_ue8m0=False async_finish=False return_recv_hook=False",
    "Buffer.low_latency_combine": "self! x! topk_idx! topk_weights! handle! use_logfmt=False zero_copy=False "
    "async_finish=False return_recv_hook=False out=None combine_wait_recv_cost_stats=None",
    "Buffer.get_next_low_latency_combine_buffer": "self! handle!",
    "Buffer.low_latency_update_mask_buffer": "self! rank_to_mask! mask=False",
    "Buffer.low_latency_query_mask_buffer": "self! mask_status!",
    "Buffer.low_latency_clean_mask_buffer": "self!",
    "Config": "num_sms=20 num_max_nvl_chunked_send_tokens=6 num_max_nvl_chunked_recv_tokens=256 "
    "num_max_rdma_chunked_send_tokens=6 num_max_rdma_chunked_recv_tokens=256",
    "Config.get_nvl_buffer_size_hint": "self! hidden_bytes! num_ranks!",
    "Config.get_rdma_buffer_size_hint": "self! hidden_bytes! num_ranks!",
    "EventOverlap": "event=None extra_tensors=None",
    "EventOverlap.current_stream_wait": "self! release_handle=False",
    "EventHandle": "",
    "EventHandle.current_stream_wait": "self!",
    "ElasticBuffer": "group! num_bytes=None num_cpu_bytes=0 num_max_tokens_per_rank=0 hidden=0 num_topk=0 "
    "use_fp8_dispatch=False deterministic=False allow_hybrid_mode=True allow_multiple_reduction=True "
    "prefer_overlap_with_compute=True sl_idx=3 num_allocated_qps=0 num_cpu_timeout_secs=300 num_gpu_timeout_secs=100 "
    "explicitly_destroy=False",
    "ElasticBuffer.get_buffer_size_hint": "group! num_max_tokens_per_rank! hidden! num_topk=0 use_fp8_dispatch=False "
    "allow_hybrid_mode=True allow_multiple_reduction=True",
    "ElasticBuffer.dispatch": "self! x! topk_idx=None topk_weights=None cumulative_local_expert_recv_stats=None "
    "num_experts=None num_max_tokens_per_rank=None expert_alignment=None num_sms=0 num_qps=0 previous_event=None "
    "previous_event_before_epilogue=None async_with_compute_stream=False allocate_on_comm_stream=False handle=None "
    "do_handle_copy=True do_cpu_sync=None do_expand=False do_zero_padding=False use_tma_aligned_col_major_sf=False",
    "ElasticBuffer.combine": "self! x! handle! topk_weights=None bias=None num_sms=0 num_qps=0 previous_event=None "
    "previous_event_before_epilogue=None async_with_compute_stream=False allocate_on_comm_stream=False",
    "ElasticBuffer.barrier": "self! use_comm_stream=True with_cpu_sync=False sequential=True",
    "ElasticBuffer.get_theoretical_num_qps": "self! num_sms!",
    "ElasticBuffer.pp_set_config": "self! num_max_tensor_bytes! num_max_inflight_tensors!",
    "ElasticBuffer.agrs_new_session": "self! enabled=True",
    "ElasticBuffer.engram_fetch": "self! indices! num_qps=0 use_tma_aligned_col_major_sf=False",
    "EPBuffer": "group! num_bytes=None num_max_tokens_per_rank=0 hidden=0 num_topk=0 use_fp8_dispatch=False "
    "lb_allocation_plan_or_num_bytes=0 deterministic=False allow_hybrid_mode=True allow_multiple_reduction=True "
    "prefer_overlap_with_compute=True sl_idx=None num_allocated_qps=0 num_cpu_timeout_secs=300 "
    "num_gpu_timeout_secs=100 explicitly_destroy=False",
    "EPBuffer.dispatch": "self! x! topk_idx=None topk_weights=None cumulative_local_expert_recv_stats=None "
    "num_experts=None num_max_tokens_per_rank=None expert_alignment=None num_sms=0 num_qps=0 previous_event=None "
    "async_with_compute_stream=False allocate_on_comm_stream=False handle=None do_handle_copy=False do_cpu_sync=None "
    "do_expand=False do_zero_padding=False use_tma_aligned_col_major_sf=False defer_epilogue=False",
    "EPBuffer.combine": "self! x! handle! topk_weights=None bias=None num_sms=0 num_qps=0 previous_event=None "
    "async_with_compute_stream=False allocate_on_comm_stream=False defer_epilogue=False",
    "EPBuffer.lb_prefetch_weights": "self! redundant_expert_weights! expert_weights! redundancy_mapping! num_sms=0 "
    "previous_event=None",
    "EPBuffer.lb_reduce_grads": "self! redundant_expert_grads! expert_grads! redundancy_mapping! num_sms=0 "
    "previous_event=None",
    "HybridEPBuffer": "group! hidden_dim! max_num_of_tokens_per_rank! num_local_experts! use_fp8=False "
    "num_sms_dispatch_api=None num_sms_combine_api=None num_sms_preprocessing_api=None num_blocks_permute=None "
    "num_blocks_unpermute=None load_cached_kernels=False use_shared_buffer=True enable_custom_allgather=False "
    "num_of_hybrid_ep_ranks_per_nvlink_domain=None use_mnnvl=None",
    "HybridEPBuffer.dispatch": "self! hidden! scaling_factor=None topk_idx=None topk_weights=None num_of_experts=None "
    "probs=None routing_map=None num_dispatched_tokens_tensor=None num_dispatched_tokens=None handle=None",
    "HybridEPBuffer.combine": "self! hidden! probs=None handle=None",
    "HybridEPBuffer.dispatch_with_permute": "self! * hidden! topk_idx=None topk_weights=None "
    "num_of_experts_per_rank=None num_of_experts=None use_fp8=None routing_map=None probs=None "
    "scaling_factor=None num_permuted_tokens=None "
    "pad_multiple=None handle=None non_blocking=False fuse_permute_dispatch=False num_dispatched_tokens=None "
    "use_host_meta=None",
    "HybridEPBuffer.combine_with_unpermute": "self! * hidden! probs=None handle=None pad_multiple=None "
    "fuse_unpermute_combine=False num_dispatched_tokens=None",
}


def described(function):
    words, by_keyword = [], False
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is one.KEYWORD_ONLY and not by_keyword:
            by_keyword = True
            words.append("*")
        words.append(f"{name}!" if one.default is REQUIRED else f"{name}={one.default}")
    return words


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    """Arguments of forks may follow, by keyword alone."""
    function = deep_ep
    for part in name.split("."):
        function = getattr(function, part)
    wanted = SIGNATURES[name].split()
    seen = described(function)
    assert seen[: len(wanted)] == wanted
    assert len(seen) == len(wanted) or (seen[len(wanted)] == "*" and "*" not in wanted)


FORKS = {
    "Buffer": "use_fabric num_nvl_peers allow_nvlink_for_normal_mode",
    "Buffer.dispatch": "global_expert_id_offset",
    "Buffer.low_latency_dispatch": "topk_weights use_nvfp4 x_global_scale use_ue8m0_for_sf pertoken_quant",
    "Buffer.low_latency_combine": "overlap packed_recv_count comp_signal block_m threshold num_sms src_signals "
    "src_signal_expect_value",
}


@pytest.mark.parametrize("name", FORKS)
def test_arguments_of_forks_are_known(name):
    function = deep_ep
    for part in name.split("."):
        function = getattr(function, part)
    assert not set(FORKS[name].split()) - set(inspect.signature(function).parameters)


def in_new_process(text):
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_touches_no_device_and_starts_no_thread():
    said = in_new_process(
        "import threading, torch, deep_ep, deep_ep_cpp, deep_ep.hybrid_ep_buffer\n"
        "print(torch.cuda.is_initialized(), threading.active_count())"
    )
    assert said.split() == ["False", "1"]


def test_a_forked_child_can_use_it():
    said = in_new_process(
        "import os, deep_ep, torch, torch.distributed as dist\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 25)\n"
        "    layout = buffer.get_dispatch_layout(torch.zeros(2, 1, dtype=torch.int64), 2)\n"
        "    recv, *_ = buffer.dispatch(torch.ones(2, 16), None, layout[0], layout[1], layout[3], layout[2])\n"
        "    os._exit(0 if recv.shape == (2, 16) else 1)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    assert said.split() == ["0"]


def test_events():
    never = deep_ep.EventOverlap(None)
    assert never.event is None
    with pytest.raises((AssertionError, ValueError)):
        never.current_stream_wait()
    event = deep_ep.EventOverlap(deep_ep.EventHandle(), (torch.zeros(1),))
    event.current_stream_wait()
    said = []
    event.register_hook_after_wait(lambda: said.append(1))
    with event(release_handle=True):
        assert not said
    assert said == [1] and event.event is None
    event.event = deep_ep.EventHandle()  # clients assign it
    event.event.current_stream_wait()
    assert isinstance(deep_ep.Buffer.capture(), deep_ep.EventOverlap)
    assert isinstance(deep_ep.ElasticBuffer.capture(), deep_ep.EventHandle)
