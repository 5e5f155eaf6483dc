"""The names that programs take from DeepEP's C++ module: the same objects as in deep_ep."""

from deep_ep import Buffer, Config, EventHandle, topk_idx_t

__all__ = ["Buffer", "Config", "EventHandle", "topk_idx_t"]
