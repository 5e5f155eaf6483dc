"""Tensors from each rank to its neighbours: a heddle buffer of two ranks for each direction of each edge, one host."""

from __future__ import annotations

import pickle
from typing import Any

import heddle
import torch
from heddle import UsageError

from .checks import describe
from .group import default_timeout
from .packets import ROW_BYTES, from_rows, num_rows, to_rows
from .sizes import dispatch_range, window_for

_IN_FLIGHT = 2  # split dispatches that one heddle buffer has under way


class Edge:
    """One direction between two ranks: heddle buffers in turn, so that as many tensors are under way as wanted."""

    def __init__(self, is_source: bool, buffers: list[heddle.Buffer]) -> None:
        self._is_source = is_source
        self._buffers = buffers
        self._calls = 0
        self._under_way: list[Any] = []

    def _next(self) -> heddle.Buffer:
        self._calls += 1
        return self._buffers[(self._calls - 1) // _IN_FLIGHT % len(self._buffers)]

    def send(self, tensor: torch.Tensor) -> None:
        rows = to_rows(tensor).cpu()  # these buffers are the host's, whatever the tensor's device
        buffer = self._next()
        to = torch.tensor([[False, True]], device="cpu").expand(rows.shape[0], 2)
        split = buffer.dispatch_send(buffer.plan_from_rank_map(to), rows, max_tokens=max(rows.shape[0], 1))
        self._under_way = [*self._under_way, split][-_IN_FLIGHT * len(self._buffers) :]

    def receive(self, tensor: torch.Tensor) -> None:
        buffer = self._next()
        shape = to_rows(tensor).shape
        nothing = torch.zeros(0, shape[1], dtype=torch.uint8, device="cpu")
        plan = buffer.plan_from_rank_map(torch.zeros(0, 2, dtype=torch.bool, device="cpu"))
        received = buffer.dispatch_send(plan, nothing, max_tokens=max(shape[0], 1)).receive()
        tensor.copy_(from_rows(received.x[: shape[0]], tensor.shape, tensor.dtype))


class Ring:
    """Both directions to the next rank and the one before. Collective."""

    def __init__(self, bootstrap: heddle.Bootstrap, num_bytes: int, in_flight: int) -> None:
        self._rank, self._size = bootstrap.rank, bootstrap.size
        self._num_bytes = num_bytes
        count = -(-in_flight // _IN_FLIGHT)
        edges = sorted({(a, b % self._size) for a in range(self._size) for b in (a + 1, a - 1) if a != b % self._size})
        mine = [edge for edge in edges if edge[0] == self._rank]
        listeners = {edge: [heddle.tcp_listen() for _ in range(count)] for edge in mine}
        secret = heddle.make_secret()
        told = {edge: [port for _, port in open_] for edge, open_ in listeners.items()}
        everyone = [pickle.loads(one) for one in bootstrap.all_gather(pickle.dumps((told, secret)))]
        rows = num_rows(num_bytes)
        window = window_for(2, dispatch_range(rows, ROW_BYTES, 0, 2, 2))
        self._edges: dict[tuple[int, int], Edge] = {}
        for edge in edges:  # in the same order everywhere, or two ranks would wait for each other
            if self._rank in edge:
                ports, its_secret = everyone[edge[0]][0][edge], everyone[edge[0]][1]
                self._edges[edge] = self._connect(edge, ports, its_secret, listeners.get(edge), window)

    def _connect(self, edge: tuple[int, int], ports: list[int], secret: str, listeners: Any, window: int) -> Edge:
        buffers = []
        for i, port in enumerate(ports):
            group = heddle.tcp(
                int(self._rank == edge[1]),
                2,
                f"127.0.0.1:{port}",
                secret,
                default_timeout(),
                listener=listeners[i][0] if listeners else -1,
            )
            buffers.append(heddle.Buffer(group, experts=2, window_bytes=window, timeout=default_timeout()))
        return Edge(self._rank == edge[0], buffers)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        self._edge("dst_rank_idx", (self._rank, to), to, tensor).send(tensor)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        self._edge("src_rank_idx", (source, self._rank), source, tensor).receive(tensor)

    def _edge(self, name: str, edge: tuple[int, int], peer: int, tensor: Any) -> Edge:
        if edge not in self._edges:
            legal = sorted({(self._rank + 1) % self._size, (self._rank - 1) % self._size} - {self._rank})
            raise UsageError(f"{name} = {peer}, legal: a neighbour, of {legal}")
        num_bytes = tensor.numel() * tensor.element_size() if isinstance(tensor, torch.Tensor) else -1
        if not 0 <= num_bytes <= self._num_bytes:
            raise UsageError(f"t is {describe(tensor)}, legal: a tensor of up to {self._num_bytes} bytes")
        return self._edges[edge]
