"""What callers read of a HybridEPBuffer's configuration."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class BufferConfig:
    """Sizes that the buffer is made for. Heddle needs none of them: a larger call only raises them."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int
    num_of_ranks_per_node: int
    num_of_nodes: int
    token_data_type: str
    num_of_blocks_preprocessing_api: int
    num_of_blocks_dispatch_api: int
    num_of_blocks_combine_api: int
    num_of_tokens_per_chunk_dispatch_api: int = 64
    num_of_tokens_per_chunk_combine_api: int = 64

    @property
    def num_of_dispatch_chunks(self) -> int:
        return -(-self.max_num_of_tokens_per_rank // self.num_of_tokens_per_chunk_dispatch_api)

    @property
    def num_of_combine_chunks(self) -> int:
        return -(-self.max_num_of_tokens_per_rank // self.num_of_tokens_per_chunk_combine_api)

    def is_valid(self) -> bool:
        return min(self.hidden_dim, self.max_num_of_tokens_per_rank, self.num_of_experts_per_rank) > 0

    def grow(self, hidden_dim: int, tokens: int, local_experts: int) -> None:
        """Raises what is too small for a call."""
        self.hidden_dim = max(self.hidden_dim, hidden_dim)
        self.max_num_of_tokens_per_rank = max(self.max_num_of_tokens_per_rank, stored_tokens(tokens))
        self.num_of_experts_per_rank = max(self.num_of_experts_per_rank, local_experts)


def stored_tokens(tokens: int) -> int:
    return -(-max(tokens, 512) // 64) * 64


@dataclasses.dataclass
class Configurer:
    buffer_config: BufferConfig


class HybridEpConfigInstance:
    """The configuration of one call; goes back with its handle. Further attributes may be set."""

    def __init__(self, **settings: Any) -> None:
        self._route: Any = None
        self.hidden_dim = 0
        self.max_num_of_tokens_per_rank = 0
        self.num_of_experts_per_rank = 0
        self.num_of_ranks_per_node = 1
        self.num_of_nodes = 1
        self.pad_multiple = 0
        self.token_data_type = "uint16"
        self.__dict__.update(settings)
