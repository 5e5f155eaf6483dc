"""Each line of `heddle doctor`, on machines that do not exist."""

import json

import heddle
import pytest
from heddle.cli.main import app
from heddle.doctor import gpu_paths, gpus, machine, nics, paths, self_test, versions
from heddle.doctor.line import Line
from heddle.doctor.paths import Place
from heddle.doctor.probe import Probe
from typer.testing import CliRunner

CPU_ONLY = {"cuda": False, "fabric": False}
ALL = {"cuda": True, "fabric": True}


class Fake(Probe):
    """A machine made of files, commands and packages."""

    def __init__(self, files=(), commands=(), packages=(), cores=(0, 1)):
        self.files, self.commands, self.packages, self._cores = dict(files), dict(commands), dict(packages), list(cores)

    def text(self, path):
        return self.files.get(path)

    def names(self, path):
        below = [name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(path + "/")]
        return sorted(set(below))

    def run(self, *command):
        return self.commands.get(" ".join(command))

    def version(self, package):
        return self.packages.get(package)

    def cores(self):
        return self._cores


def test_cpu_names_the_processor_its_share_and_its_vectors():
    info = "".join(f"processor\t: {i}\nmodel name\t: Abacus 9\nflags\t\t: fpu fma f16c avx2\n" for i in range(4))
    line = machine.cpu(Fake({"/proc/cpuinfo": info}))
    assert line == Line("CPU", "Abacus 9, 2 of 4 cores, vectors: avx2, f16c, fma")
    old = machine.cpu(Fake({"/proc/cpuinfo": info.replace("avx2", "sse2")}))
    assert old.state == "note" and "AVX2" in old.advice
    assert "unknown processor" in machine.cpu(Fake()).found


def test_memory_counts_the_containers_limit():
    files = {"/proc/meminfo": "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n"}
    assert machine.memory(Fake(files)) == Line("memory", "4.0 of 8.0 GiB free")
    line = machine.memory(Fake({**files, "/sys/fs/cgroup/memory.max": "1073741824\n"}))
    assert "at most 1.0 GiB" in line.found and line.state == "note" and "window_bytes" in line.advice
    assert machine.memory(Fake({**files, "/sys/fs/cgroup/memory.max": "max\n"})).state == "ok"
    assert machine.memory(Fake()).state == "note"


@pytest.mark.parametrize(("release", "state"), [("6.1.0-x", "ok"), ("3.17", "ok"), ("3.10.0-1160.el7", "fail")])
def test_shared_memory_needs_memfd(release, state):
    assert machine.shared_memory(Fake({"/proc/sys/kernel/osrelease": release + "\n"})).state == state


GPU = "0, H200, 143771, 580.1\n1, H200, 143771, 580.1\n"
QUERY = " ".join(gpus._QUERY)


def topo(cell):
    return f"\tGPU0\tGPU1\n GPU0\tX\t{cell}\n GPU1\t{cell}\tX\n\nLegend:\n  OK = fine\n"


def test_no_gpu_is_no_fault():
    assert [line.state for line in gpus.gpus(Fake(), ALL)] == ["ok"]


def test_gpus_that_this_build_cannot_use_are_named():
    lines = gpus.gpus(Fake(commands={QUERY: GPU.splitlines()[0] + "\n"}), CPU_ONLY)
    assert lines[0] == Line("GPU 0", "H200, 140 GiB, driver 580.1")
    assert lines[1].state == "note" and "HEDDLE_CUDA=ON" in lines[1].advice


@pytest.mark.parametrize(("cell", "word"), [("OK", "all 1 pairs"), ("NS", "no peer access between 0-1")])
def test_peer_access_is_told_for_each_pair(cell, word):
    fake = Fake(commands={QUERY: GPU, "nvidia-smi topo -p2p rw": topo(cell)})
    line = gpus.gpus(fake, ALL)[-1]
    assert line.topic == "GPU peers" and word in line.found


def test_peers_are_unknown_without_a_matrix():
    assert gpus.gpus(Fake(commands={QUERY: GPU}), ALL)[-1].state == "note"


def test_nics_with_speed_and_without():
    files = {
        "/sys/class/net/lo/operstate": "unknown\n",
        "/sys/class/net/eth0/operstate": "up\n",
        "/sys/class/net/eth0/speed": "25000\n",
        "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    }
    lines = nics.nics(Fake(files), ALL)
    assert [line.found for line in lines] == ["eth0: up, 25 Gb/s", "mlx5_0: RDMA, 400 Gb/sec (4X NDR)"]
    lines = nics.nics(Fake(), CPU_ONLY)
    assert "none but loopback" in lines[0].found and lines[1].state == "note"


def test_versions_say_what_is_needed_and_how_to_get_it():
    found = {line.topic: line for line in versions.packages(Fake(packages={"numpy": "1.20.3", "torch": "2.13.0+cpu"}))}
    assert found["numpy"].state == "fail" and "needed 1.26" in found["numpy"].found
    assert found["torch"] == Line("torch", "2.13.0+cpu")
    assert found["matplotlib"].state == "ok" and "heddle[plot]" in found["matplotlib"].found
    assert {line.topic: line.state for line in versions.packages(Fake())}["numpy"] == "fail"
    assert "cuda no" in versions.heddle("1.2.3", CPU_ONLY).found


def test_every_pair_of_ranks_has_a_path_with_a_reason_or_fails():
    here, there, far = Place("a", 1, "net1"), Place("a", 2, "net1"), Place("b", 3, "net2")
    lines = paths.paths([here, there, here, far], CPU_ONLY)
    assert [(line.topic, line.found.split(":")[0], line.state) for line in lines] == [
        ("path 0-1, 1-2", "shared memory", "ok"),
        ("path 0-2", "heap", "ok"),
        ("path 0-3, 1-3, 2-3", "none", "fail"),
    ]
    assert paths.path_between(here, far, ALL).name == "network"
    assert paths.path_between(here, Place("a", 4, "net3"), ALL).name == ""
    assert "its own memory" in paths.paths([here], ALL)[0].found
    assert "and 9 more" in paths.paths([Place("a", i) for i in range(6)], ALL)[0].topic


def test_each_pair_of_gpus_has_its_path():
    paths = [["descriptor", "descriptor", "pinned"], ["descriptor"] * 3, ["pinned", "descriptor", "descriptor"]]
    lines = gpu_paths.lines_of([0, 1, 2], paths)
    assert [(line.topic, line.found.split(":")[0], line.state) for line in lines] == [
        ("GPU path 0-1, 1-2", "descriptor", "ok"),
        ("GPU path 0-2", "pinned", "note"),
    ]
    assert gpu_paths.lines_of([0], [["fabric"]])[0].topic == "GPU path 0"


def test_memory_of_a_buffer_is_predicted_and_measured():
    maps = (
        "7f0000000000-7f0010000000 rw-s 00000000 00:01 2055 /memfd:heddle (deleted)\n"
        "7f0020000000-7f0030000000 rw-p 00000000 00:00 0\n"
    )
    assert self_test.window_bytes(maps) == 256 << 20
    report = {"predicted_bytes": 256 << 20, "own_bytes": 256 << 20}
    assert self_test.memory([report]).state == "ok"
    assert self_test.memory([{**report, "own_bytes": 300 << 20}]).state == "note"


def test_a_failed_self_test_is_a_line_with_its_error():
    line = self_test.failed(TimeoutError("rank 1 did not come"))
    assert line.state == "fail" and "rank 1 did not come" in line.found


def test_the_command_examines_this_machine():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.stdout
    topics = {line["topic"]: line for line in lines}
    assert topics["self-test"]["state"] == "ok" and "all right" in topics["self-test"]["found"]
    assert topics["buffer"]["state"] == "ok", topics["buffer"]
    assert "shared memory" in topics["path 0-1"]["found"]


@pytest.mark.skipif(not heddle._core.cuda_problem(), reason="there is a GPU")
def test_without_a_gpu_it_says_why_there_is_no_path():
    (line,) = gpu_paths.gpu_paths(2)
    assert line.state == "note" and line.found == f"none: {heddle._core.cuda_problem()}"
