"""What the model learns: the pages of this repository, byte by byte."""

from pathlib import Path

import torch

from .size import Size

ROOT = Path(__file__).resolve().parents[2]


class Text:
    """Every rank reads it all, draws the same batches from it, and keeps its share of each."""

    def __init__(self, size: Size, seed: int) -> None:
        pages = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
        self._bytes = torch.frombuffer(bytearray(b"\n".join(page.read_bytes() for page in pages)), dtype=torch.uint8)
        self._size, self._seed = size, seed

    def __len__(self) -> int:
        return len(self._bytes)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Bytes [B, S] int64, and the bytes that follow each of them."""
        size = self._size
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        starts = torch.randint(len(self) - size.length, (size.sequences, 1), generator=draw)
        windows = self._bytes[starts + torch.arange(size.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]
