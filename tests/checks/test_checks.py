"""The checks themselves: each must find what it is there for."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_layers
import check_symbols


class folder_test(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="kvtier_checks_"))
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class layers(folder_test):
    def setUp(self):
        super().setUp()
        self.write("cpu/a.hpp", "#include <vector>\n")
        self.write("gpu/device.hpp", '#include "cpu/a.hpp"\n')
        self.write("gpu/cuda/kernels.cu", '#include <cuda_runtime.h>\n#include "gpu/device.hpp"\n')
        self.write("storage/s.hpp", "")
        self.write("runtime/kvtier.hpp", '#include "gpu/device.hpp"\n')
        self.write("runtime/trace_writer.hpp", "")
        self.write("runtime/private.hpp", '#include "storage/s.hpp"\n')
        self.write("tools/run/main.cpp",
                   '#include "runtime/kvtier.hpp"\n#include "cpu/a.hpp"\n#include "tools/run/x.hpp"\n')
        self.write("tools/run/x.hpp", "")
        self.write("tests/cpu/test_a.cpp", '#include "cpu/a.hpp"\n#include "runtime/private.hpp"\n')

    def found(self):
        return list(check_layers.violations(self.root))

    def test_arrows_that_exist_are_accepted(self):
        self.assertEqual(self.found(), [])

    def test_arrows_that_do_not_exist_are_found(self):
        for name, line in [("cpu/b.cpp", '#include "gpu/device.hpp"'),
                           ("storage/b.cpp", '#include "cpu/a.hpp"'),
                           ("gpu/b.cpp", '  #  include "storage/s.hpp"'),
                           ("lsh/b.cpp", '#include "runtime/kvtier.hpp"'),
                           ("runtime/b.cpp", '#include "tools/run/x.hpp"')]:
            with self.subTest(name):
                path = self.write(name, "// text\n" + line + "\n")
                self.assertEqual(len(self.found()), 1, self.found())
                self.assertTrue(self.found()[0].startswith(name + ":2: "), self.found())
                path.unlink()

    def test_run_may_only_see_the_public_api(self):
        self.write("tools/run/bad.cpp", '#include "runtime/private.hpp"\n')
        self.write("tools/decoder/good.cpp", '#include "runtime/private.hpp"\n')
        self.assertEqual(len(self.found()), 1, self.found())
        self.assertIn("tools/run/bad.cpp:1", self.found()[0])

    def test_cuda_headers_stay_under_cuda(self):
        for header in ["cuda_runtime.h", "cublas_v2.h", "nvtx3/nvtx3.hpp", "cuda/std/span"]:
            with self.subTest(header):
                self.write("gpu/b.hpp", f"#include <{header}>\n")
                self.assertEqual(len(self.found()), 1, self.found())

    def test_paths_start_at_the_root(self):
        self.write("cpu/b.cpp", '#include "a.hpp"\n')
        self.assertEqual(len(self.found()), 1, self.found())


@unittest.skipUnless(shutil.which("c++") and shutil.which("ar"), "no compiler on PATH")
class symbols(folder_test):
    def library(self, body):
        source = self.write("m.cpp", body)
        subprocess.run(["c++", "-c", source, "-o", self.root / "m.o"], check=True)
        subprocess.run(["ar", "rcs", self.root / "libm.a", self.root / "m.o"], check=True)
        return str(self.root / "libm.a")

    def test_silent_code_is_accepted(self):
        library = self.library("#include <string>\nstd::string f(int x) { return std::to_string(x); }")
        self.assertEqual(list(check_symbols.violations("nm", library)), [])

    def test_output_and_ends_of_the_process_are_found(self):
        for body, symbol in [
                ("#include <cstdio>\nvoid f(int x) { std::printf(\"%d\", x); }", "printf"),
                ("#include <cstdio>\nvoid f(int x) { std::fprintf(stderr, \"%d\", x); }", "stderr"),
                ("#include <iostream>\nvoid f() { std::cout << 1; }", "std::cout"),
                ("#include <cstdlib>\nvoid f() { std::abort(); }", "abort"),
                ("#include <cstdlib>\nvoid f() { std::exit(1); }", "exit"),
                ("#include <csignal>\nvoid f() { std::signal(2, nullptr); }", "signal")]:
            with self.subTest(symbol):
                found = list(check_symbols.violations("nm", self.library(body)))
                self.assertTrue(any(v.endswith(f"(m.o) refers to {symbol}") for v in found), found)

    def test_allowed_entries_apply_to_their_member_only(self):
        library = self.library("#include <cstdlib>\nvoid f() { std::abort(); }")
        self.assertEqual(
            list(check_symbols.violations("nm", library, [("libm", r"m\.o", "abort")])), [])
        self.assertEqual(
            len(list(check_symbols.violations("nm", library, [("libm", r"n\.o", "abort")]))), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
