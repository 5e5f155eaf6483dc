"""`heddle bench` at small sizes: what it prints, what it writes, and that it would notice a wrong result."""

import json

import heddle
import numpy as np
import pytest
from heddle.bench import routing
from heddle.bench.check import WrongResult, check_combine, check_dispatch, expert_rows
from heddle.bench.expect import Arrivals, World, weights_of
from heddle.bench.fleet import Fleet, RankFailed
from heddle.bench.memory import check_fits
from heddle.bench.options import Options
from heddle.bench.payload import Payload
from heddle.cli.main import app
from typer.testing import CliRunner

SMALL = ["--ranks", "2", "--tokens", "24", "--hidden", "256", "--topk", "3", "--experts", "8", "--iterations", "2"]


@pytest.mark.parametrize(
    "extra",
    [
        ["--dtype", "bf16"],
        ["--dtype", "fp8", "--routing", "zipf:1.1"],
        ["--mode", "latency", "--routing", "hot:2"],
        ["--mode", "latency", "--dtype", "fp8"],
    ],
)
def test_command_verifies_measures_and_writes(extra, tmp_path):
    path, picture = tmp_path / "out.json", tmp_path / "out.png"
    result = CliRunner().invoke(app, ["bench", *SMALL, *extra, "--json", str(path), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["checked"]["bytes against the spec"] > 0 and report["checked"]["elements against NumPy"] > 0
    for name in ("dispatch", "combine"):
        operation = report["operations"][name]
        assert np.array(operation["nanoseconds"]).shape == (2, 2)
        assert 0 < operation["floor_ns"] and all(wire > 0 for wire in operation["wire_bytes"])
    assert picture.stat().st_size > 0 and "dispatch" in result.output


def test_wrong_options_name_the_legal_ones():
    for bad, word in (
        ({"mode": "fast"}, "throughput, latency"),
        ({"hidden": 100}, "multiples of 16"),
        ({"topk": 9, "experts": 8}, "1 to the number of experts"),
        ({"ranks": 0}, "1 to 128"),
    ):
        with pytest.raises(heddle.UsageError, match=word):
            Options(**bad).check()
    for bad in ("zipf:x", "hot:0", "round", "nothing.npz"):
        with pytest.raises(heddle.UsageError, match="routing"):
            routing.resolve(Options(routing=bad))


def test_routings_are_what_they_say(tmp_path):
    options = Options(ranks=2, tokens=400, experts=16, topk=4)
    uniform = routing.ids_of(options, 0)
    assert all(len(set(row)) == 4 for row in uniform) and len(np.unique(uniform)) == 16
    hot = routing.ids_of(Options(ranks=2, tokens=50, experts=16, topk=4, routing="hot:4"), 0)
    assert (np.sort(hot, axis=1) == np.arange(4)).all()
    zipf = np.bincount(routing.ids_of(Options(tokens=400, experts=16, topk=1, routing="zipf:2"), 0).ravel())
    assert zipf.max() > 150
    np.savez(tmp_path / "r.npz", ids=np.full((2, 7, 3), 5))
    from_file = routing.resolve(Options(ranks=2, experts=16, routing=str(tmp_path / "r.npz")))
    assert (from_file.tokens, from_file.topk) == (7, 3) and (routing.ids_of(from_file, 1) == 5).all()
    with pytest.raises(heddle.UsageError, match="legal: 3"):
        routing.resolve(Options(ranks=3, experts=16, routing=str(tmp_path / "r.npz")))


@pytest.mark.parametrize("mode", ["throughput", "latency"])
def test_a_single_wrong_element_is_noticed(mode):
    options = Options(ranks=1, tokens=30, hidden=256, topk=3, experts=8, mode=mode)
    world = World(options)
    payload = Payload(options, world.most_sum())
    arrivals = Arrivals(world, 0)
    x = payload.sent.rows(np.arange(30))
    with heddle.Buffer(heddle.in_process(1)[0], experts=8, max_tokens=30) as buffer:
        plan = buffer.plan(world.ids[0])
        received = buffer.dispatch(plan, x, weights=weights_of(options), dtype="bfloat16", layout=options.layout)
        assert check_dispatch(world, 0, arrivals, payload, received) > 0
        y = received.x.copy().reshape(-1, 256)
        expert_rows(arrivals, payload, y)
        y = y.reshape(received.x.shape)
        combined = buffer.combine(received.handle, y, dtype="bfloat16", weighted=options.is_slab)
    assert check_combine(world, 0, payload, combined) == 30 * 256
    received.x.reshape(-1, 256)[arrivals.place[17], 200] ^= 1
    with pytest.raises(WrongResult, match="1 of .* rows are wrong"):
        check_dispatch(world, 0, arrivals, payload, received)
    combined.x[29, 255] ^= 1
    with pytest.raises(WrongResult, match="1 of 30 sums are wrong"):
        check_combine(world, 0, payload, combined)


def test_what_does_not_fit_is_refused_with_both_numbers():
    huge = Options(ranks=8, tokens=2**20, hidden=2**20, experts=8, topk=1)
    world = World(Options(ranks=8, tokens=16, hidden=2**20, experts=8, topk=1))
    with pytest.raises(heddle.UsageError, match="GiB, and .* are free"):
        check_fits(huge, world)


def _one_dies(bootstrap, say):
    if bootstrap.rank == 1:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    bootstrap.barrier()


def test_a_rank_that_dies_is_named_and_the_others_end():
    with pytest.raises(RankFailed, match="rank 1 .* was killed by SIGKILL"):
        Fleet(2, 20.0, _one_dies).run(lambda text: None)
