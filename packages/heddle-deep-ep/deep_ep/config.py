"""Config: how V1 callers tune DeepEP, and what they ask for sizes. Heddle chooses by itself; the numbers are kept."""

from __future__ import annotations

from heddle import UsageError

from .sizes import align

NUM_LOCAL_RANKS = 8  # of DeepEP's hosts, whose formulas these are
_TOPK = _SCALES = 128  # the most that the formulas reckon with
_META_BYTES = 8


class Config:
    """Chunk sizes of DeepEP's normal kernels, tokens. Only num_sms, and the size hints, mean something here.

    Raises UsageError for chunks that DeepEP could not use either.
    """

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        if num_sms < 0:
            raise UsageError(f"num_sms = {num_sms}, legal: 0 or more")
        _check_chunks("nvl", num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens, 1)
        recv = align(num_max_rdma_chunked_recv_tokens, max(num_max_rdma_chunked_send_tokens, 1))
        _check_chunks("rdma", num_max_rdma_chunked_send_tokens, recv, 2)
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = recv

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for `num_nvl_bytes`. Any number works: a smaller one makes more rounds."""
        _check_ranks(hidden_bytes, num_ranks)
        channels = self.num_sms // 2
        local, domains = min(num_ranks, NUM_LOCAL_RANKS), max(num_ranks // NUM_LOCAL_RANKS, 1)
        row = hidden_bytes + _META_BYTES + _TOPK * 8 + _TOPK * 4 + _SCALES * 4
        words = channels * local * (2 * domains + 3) * 4
        return align(words + channels * local * self.num_max_nvl_chunked_recv_tokens * row, 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for `num_rdma_bytes`: 0 up to 8 ranks."""
        _check_ranks(hidden_bytes, num_ranks)
        if num_ranks <= NUM_LOCAL_RANKS:
            return 0
        channels, domains = self.num_sms // 2, num_ranks // NUM_LOCAL_RANKS
        row = hidden_bytes + _META_BYTES + _TOPK * 8 + _TOPK * 4 + _SCALES * 4 + 16
        words = channels * domains * (NUM_LOCAL_RANKS * 2 + 2) * 2 * 4
        return align(words + 2 * channels * domains * self.num_max_rdma_chunked_recv_tokens * row, 128)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


def _check_chunks(kind: str, send: int, recv: int, factor: int) -> None:
    if send < 1 or send >= recv or send * factor > recv:
        legal = "1 or more, and less than" if factor == 1 else "1 or more, and at most half of"
        raise UsageError(
            f"num_max_{kind}_chunked_send_tokens = {send}, legal: {legal} num_max_{kind}_chunked_recv_tokens = {recv}"
        )


def _check_ranks(hidden_bytes: int, num_ranks: int) -> None:
    if hidden_bytes < 0:
        raise UsageError(f"hidden_bytes = {hidden_bytes}, legal: 0 or more")
    if num_ranks < 1:
        raise UsageError(f"num_ranks = {num_ranks}, legal: 1 or more")


# (ranks up to, nvl send, nvl recv, rdma send, rdma recv)
_DISPATCH = (
    (2, 24, 256, 6, 128),
    (8, 6, 256, 6, 128),
    (16, 36, 288, 20, 128),
    (64, 32, 288, 8, 128),
    (96, 20, 480, 12, 128),
    (128, 20, 560, 12, 128),
    (144, 32, 720, 12, 128),
    (160, 28, 720, 12, 128),
)
_COMBINE = (
    (2, 10, 256, 6, 128),
    (4, 9, 256, 6, 128),
    (8, 4, 256, 6, 128),
    (16, 4, 288, 12, 128),
    (64, 1, 288, 8, 128),
    (96, 1, 480, 8, 128),
    (128, 1, 560, 8, 128),
    (160, 2, 720, 8, 128),
)


def recommended(kind: str, num_ranks: int, num_sms: int) -> Config:
    """The row of the published tables for the next larger number of ranks: any number has one."""
    if num_ranks < 1:
        raise UsageError(f"num_ranks = {num_ranks}, legal: 1 or more")
    table = _DISPATCH if kind == "dispatch" else _COMBINE
    row = next((row for row in table if num_ranks <= row[0]), table[-1])
    return Config(num_sms, *row[1:])
