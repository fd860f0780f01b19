"""Tests of tools/gpu_check.sh: what goes into the pack, and that it starts where it was moved to.

test_gpu_pack.py BUILD_DIR: a build folder with the kvtier command.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "python"))
import gpu_check  # noqa: E402
import gpu_pack  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 and os.path.isdir(sys.argv[-1]) else None


class Libraries(unittest.TestCase):
    def test_reads_ldd(self):
        output = """\tlinux-vdso.so.1 (0x00007fff)
\tlibfmt.so.9 => /lib/x86_64-linux-gnu/libfmt.so.9 (0x00007f00)
\tlibgone.so.1 => not found
\t/lib64/ld-linux-x86-64.so.2 (0x00007f00)
"""
        self.assertEqual(list(gpu_pack.listed_libraries(output)),
                         [("libfmt.so.9", "/lib/x86_64-linux-gnu/libfmt.so.9"), ("libgone.so.1", None)])

    def test_leaves_out_glibc_and_the_driver_only(self):
        for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libmvec.so.1", "ld-linux-x86-64.so.2", "libcuda.so.1",
                     "libnss_files.so.2", "libnvidia-ml.so.1"):
            self.assertTrue(gpu_pack.LEFT_OUT.match(name), name)
        for name in ("libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1", "libtbb.so.12", "libdnnl.so.2", "libcudart.so.13",
                     "libmpfr.so.6", "libcrypt.so.1"):
            self.assertFalse(gpu_pack.LEFT_OUT.match(name), name)

    def test_finds_symbols_of_a_newer_glibc(self):
        output = """
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.34) pthread_create
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.38) __isoc23_strtoul
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5) free
0000000000000000      DF *UND*  0000000000000000 (GLIBCXX_3.4.32) _ZNew
0000000000001234 g    DF .text  0000000000000010  GLIBC_2.99   mine
0000000000000000      DO *UND*  0000000000000000  GLIBC_3.0    later
"""
        self.assertEqual(list(gpu_pack.newer_symbols(output)), ["__isoc23_strtoul (GLIBC_2.38)", "later (GLIBC_3.0)"])

    def test_names_the_file_and_the_symbols_that_need_a_newer_glibc(self):
        program = os.path.realpath(sys.executable) if BUILD is None else BUILD / "bin" / "kvtier"
        gpu_pack.check_glibc(program)
        with self.assertRaisesRegex(gpu_pack.PackError, rf"{program} needs a glibc newer than 2.0: .*free \(GLIBC_2"):
            gpu_pack.check_glibc(program, (2, 0))


class Report(unittest.TestCase):
    def test_counts_the_cases_of_a_suite(self):
        report = {"testsuites": [{"name": "copies/gpu0", "testsuite": [
            {"name": "a", "status": "RUN", "result": "COMPLETED"},
            {"name": "b", "status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x"}]},
            {"name": "c", "status": "RUN", "result": "SKIPPED", "skipped": [{"message": "no GPU"}]},
            {"name": "d", "status": "NOTRUN", "result": "SUPPRESSED"}]}]}
        self.assertEqual(gpu_check.count_tests(report),
                         {"passed": 1, "failed": 1, "skipped": 1, "failures": ["copies/gpu0.b"]})


@unittest.skipIf(BUILD is None, "needs a build folder")
class Pack(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def test_starts_where_it_was_moved_to_with_libraries_of_its_own(self):
        gpu_pack.pack(BUILD, self.folder / "pack", ("kvtier",), ())
        moved = self.folder / "moved"
        (self.folder / "pack").rename(moved)
        told = subprocess.run([moved / "bin" / "kvtier", "--version"], env={}, stdout=subprocess.PIPE, text=True,
                              check=True)
        self.assertTrue(told.stdout.startswith("kvtier "))
        listed = subprocess.run(["ldd", moved / "bin" / "kvtier"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name, path in gpu_pack.listed_libraries(listed):
            if not gpu_pack.LEFT_OUT.match(name):
                self.assertEqual(pathlib.Path(path).resolve(), (moved / "lib" / name).resolve())
        self.assertTrue((moved / "tree/tests/data/needle/model.safetensors").exists())
        self.assertTrue((moved / "tree/tests/golden/sampler/sampler_golden.json").exists())
        self.assertEqual(set(json.loads((moved / "build.json").read_text())), {"revision", "cuda"})
        for script in moved.glob("python/*.py"):
            subprocess.run([sys.executable, "-B", script, "--help"] if script.name in ("demo.py", "gpu_check.py") else
                           [sys.executable, "-B", "-m", "py_compile", script], cwd=self.folder, check=True,
                           stdout=subprocess.DEVNULL)

    def test_an_older_pack_is_replaced_and_nothing_else(self):
        pack = self.folder / "pack"
        gpu_pack.pack(BUILD, pack, ("kvtier",), ())
        (pack / "bin" / "old").touch()
        gpu_pack.pack(BUILD, pack, ("kvtier",), ())
        self.assertFalse((pack / "bin" / "old").exists())
        other = self.folder / "other"
        other.mkdir()
        (other / "letters").touch()
        with self.assertRaisesRegex(gpu_pack.PackError, "holds something else"):
            gpu_pack.pack(BUILD, other, ("kvtier",), ())
        self.assertTrue((other / "letters").exists())

    def test_names_a_program_that_is_not_built(self):
        with self.assertRaisesRegex(gpu_pack.PackError, "build the target unheard_of"):
            gpu_pack.pack(BUILD, self.folder / "pack", ("unheard_of",), ())


if __name__ == "__main__":
    unittest.main()
