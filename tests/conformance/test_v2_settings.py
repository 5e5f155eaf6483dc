"""ElasticBuffer: attributes, recommendations, the end of its life."""

import deep_ep
import oracle
import pytest
from elastic import EXPERTS, HIDDEN, MOST, TOPK, make
from test_v1_errors import raises

pytestmark = pytest.mark.v2


def settings_body(rank):
    buffer = make(rank, prefer_overlap_with_compute=False, explicitly_destroy=True)
    assert (buffer.rank_idx, buffer.num_ranks, buffer.group) == (rank.rank, rank.size, rank.group)
    assert buffer.num_max_tokens_per_rank == MOST and buffer.num_bytes % (2 << 20) == 0 and buffer.num_bytes > 0
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert buffer.num_bytes >= hint(rank.group, MOST, HIDDEN, TOPK)
    assert hint(rank.group, 4096, 7168) > hint(rank.group, 4096, 7168, 8) > hint(rank.group, 2048, 7168, 8)
    assert buffer.num_scaleout_ranks * buffer.num_scaleup_ranks == rank.size
    assert buffer.num_rdma_ranks * buffer.num_nvlink_ranks == rank.size
    assert buffer.get_logical_domain_size() == (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks)
    assert deep_ep.get_physical_domain_size(rank.group) == buffer.get_physical_domain_size()
    sms = buffer.get_theoretical_num_sms(256, 8)
    assert sms >= 64 and sms % 2 == 0 and sms == buffer.get_theoretical_num_sms(256, 8)
    assert 0 < buffer.get_theoretical_num_qps(sms) <= buffer.num_allocated_qps
    buffer.barrier()
    buffer.get_comm_stream()
    event = buffer.capture()
    assert isinstance(event, deep_ep.EventHandle)
    batch = oracle.make_batch(rank.rank, 4, experts=EXPERTS)
    *_, end = buffer.dispatch(
        batch.x, batch.ids, num_experts=EXPERTS, previous_event=event, allocate_on_comm_stream=True, num_sms=8
    )
    assert end.event is None
    for most in (4, 40, 9):  # varies from call to call
        recv_x, *_ = buffer.dispatch(
            batch.x, batch.ids, num_experts=EXPERTS, num_max_tokens_per_rank=most, do_cpu_sync=False
        )
        assert recv_x.shape[0] == most * rank.size
    buffer.barrier(use_comm_stream=False, with_cpu_sync=True)
    buffer.destroy()
    raises(lambda: buffer.dispatch(batch.x, batch.ids, num_experts=EXPERTS), "destroyed")


def test_settings_and_life(world):
    world.run(settings_body)
