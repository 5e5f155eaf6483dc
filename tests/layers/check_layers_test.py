"""scripts/check_layers.py must find each kind of forbidden include, and none in a tidy tree."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import check_layers  # noqa: E402


def faults_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return list(check_layers.faults(root))


class CheckLayers(unittest.TestCase):
    def assert_refused(self, name, line, word):
        found = faults_of({name: f"// first line\n{line}"})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{name}:2: "), found)
        self.assertIn(word, found[0])

    def test_downward_includes_pass(self):
        tidy = {
            "src/base/error.hpp": "#include <fmt/format.h>",
            "src/protocol/plan.hpp": '#include "base/error.hpp"\n#include "protocol/port.hpp"',
            "src/ops/buffer.cpp": '#include "cpu/backend.hpp"\n#include "cuda/backend.hpp"',
            "include/heddle/heddle.hpp": "#include <heddle/buffer.hpp>\n#include <vector>",
        }
        self.assertEqual(faults_of(tidy), [])

    def test_upward_include(self):
        self.assert_refused("src/base/error.hpp", '#include "device/wait.hpp"', "base may include nothing")

    def test_protocol_knows_no_backend(self):
        self.assert_refused("src/protocol/plan.hpp", '#  include "cpu/team.hpp"', "protocol includes")

    def test_backends_do_not_know_each_other(self):
        self.assert_refused("src/cuda/steps.cu", '#include "cpu/backend.hpp"', "cuda includes")
        self.assert_refused("src/cpu/backend.cpp", '#include "cuda/backend.hpp"', "cpu includes")

    # The meaning that everything is tested against shares no code with what it tests.
    def test_spec_stands_apart(self):
        self.assert_refused("src/spec/plan.hpp", '#include "device/scan.hpp"', "spec includes")
        self.assert_refused("src/ops/buffer.cpp", '#include "spec/plan.hpp"', "ops includes")

    def test_nothing_of_python_below_python(self):
        for header in ("<torch/torch.h>", "<Python.h>", "<dlpack/dlpack.h>", "<nanobind/nanobind.h>"):
            self.assert_refused("src/ops/tensor.hpp", f"#include {header}", "python/")
            self.assert_refused("include/heddle/tensor.hpp", f"#include {header}", "python/")

    def test_includes_are_relative_to_src(self):
        self.assert_refused("src/base/error.cpp", '#include "error.hpp"', "not relative to src/")

    def test_public_header_shows_nothing_of_src(self):
        self.assert_refused("include/heddle/heddle.hpp", '#include "base/error.hpp"', "public header")

    def test_new_layer_must_be_placed(self):
        self.assertIn("unknown layer", faults_of({"src/extra/a.hpp": ""})[0])


if __name__ == "__main__":
    unittest.main()
