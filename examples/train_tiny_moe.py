#!/usr/bin/env python3
"""Trains a small mixture-of-experts language model on several ranks through Heddle, trains it once more in one process
without Heddle, and checks that both are the same training.

    examples/train_tiny_moe.py [--ranks 4] [--steps 300] [--seed 1] [--plot losses.png]

Exits 1 if a check fails.
"""

import argparse
import sys
from importlib.util import find_spec

from tiny_moe.checks import Check, compare
from tiny_moe.experts import DenseExperts
from tiny_moe.model import TinyMoe
from tiny_moe.ranks import Traffic, train_on_ranks
from tiny_moe.size import Size
from tiny_moe.text import Text
from tiny_moe.training import Record, train


def main() -> None:
    options = parse()
    size = Size()
    bytes_of_text = len(Text(size, options.seed))
    print(
        f"{options.steps} steps over {bytes_of_text} bytes of text: {options.ranks} ranks, then one process", flush=True
    )
    ranks = train_on_ranks(options.ranks, options.steps, options.seed)
    dense = train_alone(size, options.steps, options.seed)
    checks = compare(ranks, dense, size, options.seed)
    print_losses(ranks[0][0], dense)
    print_traffic([traffic for _, traffic in ranks], ranks[0][0].seconds)
    print_checks(checks)
    if options.plot:
        plot(options.plot, ranks[0][0], dense)
    sys.exit(not all(check.passed for check in checks))


def parse() -> argparse.Namespace:
    size = Size()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4, help=f"processes, 1 to {size.experts}; default 4")
    parser.add_argument("--steps", type=int, default=300, help="default 300")
    parser.add_argument("--seed", type=int, default=1, help="of parameters and batches; default 1")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses into FILE; needs matplotlib")
    options = parser.parse_args()
    if not 1 <= options.ranks <= size.experts:
        parser.error(f"--ranks is {options.ranks}, legal: 1 to {size.experts}, an expert for each")
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}, legal: 1 or more")
    if options.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def train_alone(size: Size, steps: int, seed: int) -> Record:
    model = TinyMoe(size, seed, lambda seed: DenseExperts(size, seed))
    return train(
        model, size, Text(size, seed), steps=steps, share=size.share(0, 1), sum_over_ranks=lambda tensors: None
    )


def print_losses(ranks: Record, dense: Record) -> None:
    last = len(dense.losses) - 1
    print(f"\n{'step':>6}{'loss':>12}{'dense loss':>12}{'difference':>12}")
    for step in sorted({*range(0, last, max(1, last // 6)), last}):
        loss, expected = ranks.losses[step], dense.losses[step]
        print(f"{step + 1:6}{loss:12.6f}{expected:12.6f}{loss - expected:12.1e}")
    print(f"{'time':>6}{ranks.seconds:11.1f}s{dense.seconds:11.1f}s")


def print_traffic(traffic: list[Traffic], seconds: float) -> None:
    print(f"\n{'rank':>6}{'experts':>9}{'dispatched MB':>15}{'combined MB':>13}{'in Heddle':>11}")
    for rank, one in enumerate(traffic):
        megabytes = f"{one.dispatch_bytes / 1e6:15.2f}{one.combine_bytes / 1e6:13.2f}"
        print(f"{rank:6}{one.experts:9}{megabytes}{one.seconds / seconds:11.0%}")


def print_checks(checks: list[Check]) -> None:
    print(f"\n{'check':48}{'figure':>10}{'limit':>10}")
    for check in checks:
        print(f"{check.name:48}{check.figure:10.3g}{check.limit:10.3g}  {'ok' if check.passed else 'FAILED'}")


def plot(path: str, ranks: Record, dense: Record) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    steps = range(1, len(dense.losses) + 1)
    axes.plot(steps, dense.losses, color="0.7", linewidth=4, label="dense, one process")
    axes.plot(steps, ranks.losses, color="tab:red", linewidth=1, label="ranks, through Heddle")
    axes.set(xlabel="step", ylabel="loss", title="Bytes of Heddle's pages")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
