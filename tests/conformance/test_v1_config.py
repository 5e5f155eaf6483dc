"""Config, its tables, and what callers compute sizes from. One process."""

import deep_ep
import pytest
import torch

pytestmark = pytest.mark.v1

TABLES = {
    2: ((24, 256, 6, 128), (10, 256, 6, 128)),
    4: ((6, 256, 6, 128), (9, 256, 6, 128)),
    8: ((6, 256, 6, 128), (4, 256, 6, 128)),
    16: ((36, 288, 20, 128), (4, 288, 12, 128)),
    24: ((32, 288, 8, 128), (1, 288, 8, 128)),
    64: ((32, 288, 8, 128), (1, 288, 8, 128)),
    96: ((20, 480, 12, 128), (1, 480, 8, 128)),
    128: ((20, 560, 12, 128), (1, 560, 8, 128)),
    144: ((32, 720, 12, 128), (2, 720, 8, 128)),
    160: ((28, 720, 12, 128), (2, 720, 8, 128)),
}
FIELDS = (
    "num_max_nvl_chunked_send_tokens",
    "num_max_nvl_chunked_recv_tokens",
    "num_max_rdma_chunked_send_tokens",
    "num_max_rdma_chunked_recv_tokens",
)


def up(value, to):
    return -(-value // to) * to


@pytest.mark.parametrize("ranks", TABLES)
def test_tables(ranks):
    both = (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks))
    for config, row in zip(both, TABLES[ranks], strict=True):
        seen = tuple(getattr(config, name) for name in FIELDS)
        assert seen == (*row[:3], up(row[3], row[2])) and config.num_sms == deep_ep.Buffer.num_sms


@pytest.mark.parametrize("ranks", [1, 3, 5, 7, 12, 40, 200])
def test_any_number_of_ranks_has_a_config(ranks):
    assert isinstance(deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Config)
    assert isinstance(deep_ep.Buffer.get_combine_config(ranks), deep_ep.Config)


def test_size_hints():
    config = deep_ep.Config(20)
    for num_sms, mib in ((20, 320), (24, 384)):
        assert deep_ep.Config(num_sms).get_nvl_buffer_size_hint(7168 * 2, 8) >> 20 == mib
    assert config.get_rdma_buffer_size_hint(7168 * 2, 8) == 0 < config.get_rdma_buffer_size_hint(7168 * 2, 16)
    for hint in (config.get_nvl_buffer_size_hint, config.get_rdma_buffer_size_hint):
        assert hint(4096, 16) < hint(8192, 16) and hint(4096, 16) % 128 == 0 and isinstance(hint(4096, 16), int)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
    small = (128, 2048, 8, 64)
    for i, bigger in enumerate((256, 7168, 16, 256)):
        grown = (*small[:i], bigger, *small[i + 1 :])
        assert hint(*small) <= hint(*grown), f"argument {i}"
    assert hint(128, 2048, 8, 64) < hint(256, 2048, 8, 64) < hint(256, 7168, 8, 64)
    assert hint(num_max_dispatch_tokens_per_rank=1841, hidden=5120, num_ranks=16, num_experts=448) > 2**31


def test_chunks_are_checked():
    for wrong in ({"num_sms": -2}, {"num_max_nvl_chunked_send_tokens": 256}, {"num_max_rdma_chunked_send_tokens": 256}):
        with pytest.raises((ValueError, AssertionError, RuntimeError), match=next(iter(wrong))):
            deep_ep.Config(**wrong)


def test_num_sms_is_of_the_class():
    before = deep_ep.Buffer.num_sms
    try:
        deep_ep.Buffer.set_num_sms(24)
        assert deep_ep.Buffer.num_sms == 24 == deep_ep.Buffer.get_dispatch_config(8).num_sms
    finally:
        deep_ep.Buffer.set_num_sms(before)
    assert deep_ep.Buffer.is_sm90_compiled() in (True, False)


class Sixteen:
    """An mpi4py communicator of so many ranks, whom nobody asks: a layout is local."""

    def __init__(self, size):
        self._size = size

    def Get_rank(self):  # noqa: N802
        return 0

    def Get_size(self):  # noqa: N802
        return self._size

    def allgather(self, mine):
        raise AssertionError("a layout needs no other rank")


@pytest.mark.parametrize("ranks, domains", [(16, 2), (24, 3), (12, 2)])
def test_layout_of_several_hosts(ranks, domains):
    """num_tokens_per_rdma_rank counts a token once for each eight ranks that it goes to."""
    buffer = deep_ep.Buffer(None, 1 << 25, comm=Sixteen(ranks))
    ids = torch.tensor([[0, 1], [0, ranks - 1], [-1, ranks - 1], [-1, -1]])
    per_rank, per_domain, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, ranks)
    assert per_domain.dtype == torch.int32 and per_domain.shape == (domains,)
    assert per_domain[0] == 2 and per_domain[-1] == 2 and int(per_domain.sum()) == 4
    assert per_rank.tolist() == [2, 1, *[0] * (ranks - 3), 2] == per_expert.tolist()
    assert in_rank.sum() == 5


@pytest.mark.parametrize("text", ["soon", "0", "-3"])
def test_a_wrong_timeout_is_named(monkeypatch, text):
    pytest.importorskip("heddle")
    monkeypatch.setenv("HEDDLE_DEEP_EP_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"HEDDLE_DEEP_EP_TIMEOUT is '{text}', legal"):
        deep_ep.Buffer(None, 1 << 25, comm=Sixteen(2))
