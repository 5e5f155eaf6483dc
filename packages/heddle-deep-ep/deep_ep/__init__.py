"""deep_ep, over Heddle: programs written for DeepEP run as they are, on CPU tensors too. docs/deep_ep.md lists every
name.

Importing it touches no device and starts no thread.
"""

from .allocator import (
    BufferAllocator,
    get_num_allocation_alignment,
    get_num_rdma_alignment,
    get_num_tma_alignment,
)
from .buffer import Buffer
from .checks import topk_idx_t
from .compat25 import BucketBuffer, BucketSession, EngramBuffer, PPBuffer
from .config import Config
from .elastic import ElasticBuffer
from .ep import BufferBase, EPBuffer
from .ep_handle import EPHandle
from .group import get_logical_domain_size, get_physical_domain_size
from .hybrid_config import HybridEpConfigInstance
from .hybrid_ep_buffer import HybridEPBuffer
from .utils import comm
from .utils.comm import destroy_all_managed_nccl_comm
from .utils.event import EventHandle, EventOverlap

__version__ = "2.5.0+heddle"

__all__ = [
    "BucketBuffer",
    "BucketSession",
    "Buffer",
    "BufferAllocator",
    "BufferBase",
    "Config",
    "EPBuffer",
    "EPHandle",
    "EngramBuffer",
    "PPBuffer",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "HybridEpConfigInstance",
    "__version__",
    "comm",
    "destroy_all_managed_nccl_comm",
    "get_logical_domain_size",
    "get_num_allocation_alignment",
    "get_num_rdma_alignment",
    "get_num_tma_alignment",
    "get_physical_domain_size",
    "topk_idx_t",
]
