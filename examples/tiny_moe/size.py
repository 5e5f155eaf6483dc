"""How big the model and its batches are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """B sequences of S bytes are a batch, T = B S tokens; E experts, K of them for each token; D wide."""

    sequences: int = 8  # B
    length: int = 64  # S
    width: int = 64  # D
    layers: int = 2
    heads: int = 4
    experts: int = 8  # E
    topk: int = 2  # K
    hidden: int = 128  # inside an expert

    def share(self, rank: int, ranks: int) -> slice:
        """The sequences of a batch that `rank` trains on."""
        return slice(self.sequences * rank // ranks, self.sequences * (rank + 1) // ranks)
