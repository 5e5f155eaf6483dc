"""Redundant experts: their weights pushed to where they help, their gradients added where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from heddle import UsageError

from .checks import describe, positive
from .engine import Engine, telling_others
from .packets import num_rows, row_bytes_of
from .sm_model import V25, measured_nvlink_gbs
from .streams import CommStream
from .utils.event import EventHandle, EventOverlap

Tensors = torch.Tensor | Sequence[torch.Tensor]


class LoadBalance:
    """Mixed into EPBuffer. R ranks, L experts of each, S slots for redundant ones; expert ids are owner x L + local."""

    num_ranks: int
    rank_idx: int
    runtime: Engine
    _comm_stream: CommStream

    def lb_prefetch_weights(
        self,
        redundant_expert_weights: Tensors,
        expert_weights: Tensors,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> EventOverlap:
        """Owners push experts into the slots that the mapping names. Collective, also for ranks without any.

        redundant_expert_weights  contiguous [S, ...], or a list; written to
        expert_weights            [L, ...] of the same bytes an expert, or an equally long list
        redundancy_mapping        [R, S] int32, the same on all ranks: the expert to place in slot c of rank r, -1 =
                                  none
        """
        targets, sources = _lists(
            (redundant_expert_weights, expert_weights), ("redundant_expert_weights", "expert_weights")
        )
        positive("num_sms", num_sms, 0)
        mapping = self._mapping(redundancy_mapping, targets[0].shape[0], sources[0].shape[0])

        def call() -> None:
            for target, source in zip(targets, sources, strict=True):
                self._push(target, source, mapping)

        _, event = self._comm_stream.run(
            call, [*targets, *sources, redundancy_mapping], previous_event=previous_event, is_async=True
        )
        return event

    def _push(self, target: torch.Tensor, source: torch.Tensor, mapping: list[list[int]]) -> None:
        buffer = self.runtime.any_buffer(source.device)
        local = source.shape[0]
        with telling_others(buffer, "dispatch"):
            _check_pair(target, source)
            rows = _expert_rows(source)
            per_expert = rows.shape[0] // local if local else 0
            to = [[self._holds(mapping, rank, expert) for rank in range(self.num_ranks)] for expert in range(local)]
            wanted = torch.tensor(to, dtype=torch.bool, device="cpu").view(local, self.num_ranks)
            plan = buffer.plan_from_rank_map(wanted.repeat_interleave(per_expert, dim=0).to(source.device))
        received = buffer.dispatch(plan, rows)
        arrived = sorted({expert for expert in mapping[self.rank_idx] if expert >= 0})
        parts = received.x.view(len(arrived), -1) if arrived else received.x
        slots = target.view(target.shape[0], -1).view(torch.uint8)
        for slot, expert in enumerate(mapping[self.rank_idx]):
            if expert >= 0:
                slots[slot] = parts[arrived.index(expert)][: slots.shape[1]]

    def _holds(self, mapping: list[list[int]], rank: int, local: int) -> bool:
        """Whether one of the rank's slots takes this rank's expert `local`."""
        return self._first_id + local in mapping[rank]

    def lb_reduce_grads(
        self,
        redundant_expert_grads: Tensors,
        expert_grads: Tensors,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> EventOverlap:
        """Owners add the gradients of the slots to their own, in place. Collective. The slots are not cleared.

        redundant_expert_grads  float32 [S, ...], or a list;  expert_grads  float32 [L, ...]; mapping as for weights
        """
        slots, owners = _lists((redundant_expert_grads, expert_grads), ("redundant_expert_grads", "expert_grads"))
        positive("num_sms", num_sms, 0)
        mapping = self._mapping(redundancy_mapping, slots[0].shape[0], owners[0].shape[0])

        def call() -> None:
            for slot, owner in zip(slots, owners, strict=True):
                self._add(slot, owner, mapping)

        _, event = self._comm_stream.run(
            call, [*slots, *owners, redundancy_mapping], previous_event=previous_event, is_async=True
        )
        return event

    def _add(self, slots: torch.Tensor, owner: torch.Tensor, mapping: list[list[int]]) -> None:
        """Each slot's gradient is a token of this rank that goes to its expert's owner, which adds what arrives."""
        buffer = self.runtime.any_buffer(owner.device)
        local = owner.shape[0]
        mine = mapping[self.rank_idx]
        with telling_others(buffer, "dispatch"):
            for name, tensor in (("redundant_expert_grads", slots), ("expert_grads", owner)):
                if tensor.dtype != torch.float32 or not tensor.is_contiguous():
                    raise UsageError(f"{name} is {tensor.dtype}, legal: contiguous float32")
            _check_pair(slots, owner)
            rows = _expert_rows(slots)
            per_slot = rows.shape[0] // len(mine) if mine else 0
            wanted = torch.zeros(len(mine), self.num_ranks, dtype=torch.bool, device="cpu")
            for slot, expert in enumerate(mine):
                if expert >= 0:
                    wanted[slot, expert // local] = True
            plan = buffer.plan_from_rank_map(wanted.repeat_interleave(per_slot, dim=0).to(slots.device))
        received = buffer.dispatch(plan, rows)
        first = self.rank_idx * local
        experts = [e - first for rank in mapping for e in rank if e >= 0 and first <= e < first + local]
        parts = received.x.view(len(experts), -1) if experts else received.x
        sums = owner.view(local, -1)
        for expert, part in zip(experts, parts, strict=True):
            sums[expert] += part.view(torch.float32)[: sums.shape[1]]

    def lb_get_theoretical_num_sms(self) -> int:
        """What DeepEP's model recommends, even."""
        gbs = measured_nvlink_gbs()
        sms = max(gbs / V25.read_gbs, gbs / V25.write_gbs)
        return max(2, -(-int(-(-sms // 1)) // 2) * 2)

    def _mapping(self, mapping: Any, slots: int, local: int) -> list[list[int]]:
        shape = (self.num_ranks, slots)
        if not isinstance(mapping, torch.Tensor) or mapping.dtype != torch.int32 or tuple(mapping.shape) != shape:
            raise UsageError(f"redundancy_mapping is {describe(mapping)}, legal: int32 {list(shape)}")
        self._first_id = self.rank_idx * local
        rows = mapping.tolist()
        for rank, row in enumerate(rows):
            for slot, expert in enumerate(row):
                own = rank * local <= expert < (rank + 1) * local
                if not -1 <= expert < self.num_ranks * local or own:
                    legal = f"-1, or 0 to {self.num_ranks * local - 1} without the rank's own"
                    raise UsageError(f"redundancy_mapping[{rank}][{slot}] = {expert}, legal: {legal}")
        return rows


def _lists(given: tuple[Any, Any], names: tuple[str, str]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    lists = []
    for name, value in zip(names, given, strict=True):
        tensors = [value] if isinstance(value, torch.Tensor) else list(value)
        if not tensors or not all(isinstance(t, torch.Tensor) and t.dim() >= 1 for t in tensors):
            raise UsageError(f"{name} is not a tensor or a list of them, legal: [experts, ...]")
        lists.append(tensors)
    if len(lists[0]) != len(lists[1]):
        raise UsageError(f"{names[0]} has {len(lists[0])} tensors, legal: {len(lists[1])}, as {names[1]}")
    return lists[0], lists[1]


def _check_pair(slots: torch.Tensor, experts: torch.Tensor) -> None:
    sizes = [t[0].numel() * t.element_size() if t.shape[0] else 0 for t in (slots, experts)]
    if all(t.shape[0] for t in (slots, experts)) and sizes[0] != sizes[1]:
        raise UsageError(f"redundant experts have {sizes[0]} bytes each, legal: {sizes[1]}, as the experts")
    if not slots.is_contiguous():
        raise UsageError("redundant experts are not contiguous, legal: contiguous")


def _expert_rows(experts: torch.Tensor) -> torch.Tensor:
    """[experts x rows of each, row bytes]: every expert begins a row."""
    flat = experts.detach().contiguous().view(experts.shape[0], -1).view(torch.uint8)
    rows, width = num_rows(flat.shape[1]), row_bytes_of(flat.shape[1])
    return torch.nn.functional.pad(flat, (0, rows * width - flat.shape[1])).view(-1, width)
