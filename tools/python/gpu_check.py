"""Runs the device suite and the demo of a pack (gpu_pack.py) on this machine's NVIDIA GPU. Called by its run.sh."""

import argparse
import ctypes
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

SUITES = {"test_gpu": "host device", "test_gpu_parallel": "host device, workers on oneTBB", "test_gpu_cuda": "CUDA"}
SUITE_SECONDS, DEMO_SECONDS, BENCH_SECONDS = 240, 300, 120


def find_gpus():
    """(list of GPUs, why there is none)"""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], "there is no NVIDIA driver (libcuda.so.1)"
    code = driver.cuInit(0)
    count = ctypes.c_int(0)
    if code != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return [], f"the NVIDIA driver sees no GPU (cuInit answers {code})"
    gpus = []
    for device in range(count.value):
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t(0)
        driver.cuDeviceGetName(name, 256, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        gpus.append({"name": name.value.decode(errors="replace"), "memory_bytes": memory.value})
    return gpus, None


def run(command, seconds, environment, log):
    """(exit code, seconds); the output goes to `log`. 124 = out of time, 127 = it did not start."""
    begin = time.monotonic()
    with open(log, "wb") as file:
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                  timeout=seconds, env=environment, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        except OSError as error:
            file.write(str(error).encode())
            code = 127
    return code, time.monotonic() - begin


def count_tests(report):
    """Of a GoogleTest JSON report: passed, failed and skipped cases, and the names of what failed."""
    counts = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    for suite in report.get("testsuites", []):
        for case in suite.get("testsuite", []):
            if case.get("failures"):
                counts["failed"] += 1
                counts["failures"].append(f"{suite['name']}.{case['name']}")
            elif case.get("result") == "SKIPPED" or case.get("skipped"):
                counts["skipped"] += 1
            elif case.get("status") == "RUN":
                counts["passed"] += 1
    return counts


class Check:
    def __init__(self, pack, out):
        self.pack, self.out = pack, out
        self.environment = dict(os.environ, KVTIER_SOURCE_DIR=str(pack / "tree"), PYTHONDONTWRITEBYTECODE="1")

    def starts(self):
        """Why the programs do not start here, or None."""
        log = self.out / "start.log"
        for command in (["kvtier", "--version"], ["test_gpu_cuda", "--gtest_list_tests"]):
            code, _ = run([self.pack / "bin" / command[0], *command[1:]], 60, self.environment, log)
            if code != 0:
                return f"{command[0]} does not start here ({code}): {log.read_text(errors='replace').strip()}"
        log.unlink()
        return None

    def suite(self, name):
        report = self.out / f"{name}.json"
        report.unlink(missing_ok=True)
        command = [self.pack / "bin" / name, f"--gtest_output=json:{report}", "--gtest_brief=1"]
        code, seconds = run(command, SUITE_SECONDS, self.environment, self.out / f"{name}.log")
        counts = count_tests(json.loads(report.read_text(encoding="utf-8")) if report.exists() else {})
        # A suite that skipped everything has shown nothing.
        return dict(counts, exit_code=code, seconds=seconds, good=code == 0 and counts["passed"] > 0)

    def demo(self):
        with tempfile.TemporaryDirectory(prefix="kvtier_gpu_check_") as work:
            table = self.out / "demo.json"
            table.unlink(missing_ok=True)
            command = [sys.executable, self.pack / "python" / "demo.py", "--binary", self.pack / "bin" / "kvtier",
                       "--model", self.pack / "tree/tests/data/needle", "--work", work, "--device", "cuda", "--json",
                       table]
            code, seconds = run(command, DEMO_SECONDS, self.environment, self.out / "demo.log")
        return {"exit_code": code, "seconds": seconds, "good": code == 0,
                "selectors": json.loads(table.read_text(encoding="utf-8")) if table.exists() else None}

    def bench(self):
        report = self.out / "bench_gpu.json"
        command = [self.pack / "bin" / "bench_gpu", f"--benchmark_out={report}", "--benchmark_out_format=json"]
        code, seconds = run(command, BENCH_SECONDS, self.environment, self.out / "bench_gpu.log")
        good = code == 0 and report.exists()
        return {"exit_code": code, "seconds": seconds, "good": good,
                "benchmarks": json.loads(report.read_text(encoding="utf-8"))["benchmarks"] if good else None}


def print_result(result):
    print(f"kvtier {result['build']['revision']} on {', '.join(gpu['name'] for gpu in result['gpus'])}")
    print(f"{'part':<22}{'result':<8}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for name, part in result["parts"].items():
        counts = "".join(f"{part[key]:>{width}}" if key in part else " " * width
                         for key, width in (("passed", 8), ("failed", 8), ("skipped", 9)))
        print(f"{name:<22}{'good' if part['good'] else 'BAD':<8}{counts}{part['seconds']:>9.1f}")
        for failure in part.get("failures", [])[:20]:
            print(f"  failed: {failure}")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("--pack", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--bench", action="store_true", help="bench_gpu as well, which measures the host device")
    parser.add_argument("out", type=pathlib.Path, nargs="?", metavar="OUT_DIR", help="where gpu_check.json and logs go")
    arguments = parser.parse_args()
    arguments.out = (arguments.out or arguments.pack).resolve()
    return arguments


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    check = Check(arguments.pack, arguments.out)
    problem = check.starts()
    if problem:
        sys.exit(f"gpu_check: {problem}")
    gpus, why = find_gpus()
    if not gpus:
        print(f"gpu_check: no NVIDIA GPU here: {why}; nothing was run")
        return
    build = json.loads((arguments.pack / "build.json").read_text(encoding="utf-8"))
    if not build["cuda"]:
        sys.exit("gpu_check: this pack has no CUDA backend; make it on a machine with nvcc")
    parts = {name: check.suite(name) for name in SUITES}
    parts["demo"] = check.demo()
    if arguments.bench and (arguments.pack / "bin" / "bench_gpu").exists():
        parts["bench_gpu"] = check.bench()
    result = {"build": build, "machine": platform.uname()._asdict(), "gpus": gpus, "parts": parts}
    (arguments.out / "gpu_check.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_result(result)
    demo_log = arguments.out / "demo.log"
    print(demo_log.read_text(errors="replace"))
    print(f"logs and gpu_check.json: {arguments.out}")
    sys.exit(0 if all(part["good"] for part in parts.values()) else 1)


if __name__ == "__main__":
    main()
