"""Collects what tools/gpu_check.sh needs on another machine: programs, every shared library that they need but
glibc's own, the demo and its model, and run.sh. Called by tools/gpu_check.sh.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEWEST_GLIBC = (2, 36)
PROGRAMS = ("kvtier", "test_gpu", "test_gpu_parallel", "test_gpu_cuda")
MAY_BE_MISSING = ("bench_gpu",)
SCRIPTS = ("batch_job.py", "demo.py", "gpu_check.py", "needle_text.py", "trace_overlap.py")
DATA = ("tests/data/needle", "tests/golden/sampler/sampler_golden.json")

# The other machine has its own glibc, which must fit its loader, and its own driver.
LEFT_OUT = re.compile(r"(linux-vdso|ld-linux[-\w]*|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libanl|"
                      r"libnss_\w+|libcuda|libnvidia[-\w]*)\.so(\.\d+)*$")

RUN = """#!/usr/bin/env bash
# Runs the device suite and the demo on this machine's NVIDIA GPU; says so where there is none. The table goes to
# stdout, everything to OUT_DIR/gpu_check.json (default: this folder).
#
#   run.sh [--bench] [OUT_DIR]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -B "$here/python/gpu_check.py" --pack "$here" "$@"
"""


class PackError(Exception):
    """What is wrong and what would be right, one line."""


def listed_libraries(ldd_output):
    """(soname, path) of what `ldd` lists; path is None for what it did not find."""
    for line in ldd_output.splitlines():
        found = re.match(r"\s*(\S+) => (?:(/\S+)|not found)", line)
        if found:
            yield found.group(1), found.group(2)


def needed_libraries(program):
    """soname -> file of everything that `program` loads, but what stays the machine's own."""
    output = subprocess.run(["ldd", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    libraries = {name: path for name, path in listed_libraries(output) if not LEFT_OUT.match(name)}
    for name, path in libraries.items():
        if path is None:
            raise PackError(f"{program} needs {name}, which is not there; install it and build again")
    return libraries


def newer_symbols(objdump_output, newest=NEWEST_GLIBC):
    """Undefined symbols of `objdump -T` that only a glibc newer than `newest` has, as "symbol (GLIBC_x.y)"."""
    for line in objdump_output.splitlines():
        found = re.search(r"\*UND\*.*\(?\bGLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?\s+(\S+)", line)
        if found and (int(found.group(1)), int(found.group(2))) > newest:
            yield f"{found.group(3)} (GLIBC_{found.group(1)}.{found.group(2)})"


def check_glibc(file, newest=NEWEST_GLIBC):
    output = subprocess.run(["objdump", "-T", file], check=True, stdout=subprocess.PIPE, text=True).stdout
    newer = sorted(set(newer_symbols(output, newest)))
    if newer:
        raise PackError(f"{file} needs a glibc newer than {'.'.join(map(str, newest))}: {', '.join(newer)}; "
                        "build on Debian 12")


def install(source, target, rpath):
    """Copies an ELF file, strips it and lets it look for libraries at `rpath`."""
    shutil.copyfile(source, target)
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH | stat.S_IWUSR)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)
    subprocess.run(["patchelf", "--set-rpath", rpath, target], check=True)
    check_glibc(target)


def has_cuda(build):
    """Whether the build folder was configured with a CUDA compiler and has built the backend."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    off = re.search(r"^KVTIER_CUDA:\w+=OFF$", cache, re.M)
    return not off and (build / "gpu" / "cuda" / "libkvtier_gpu_cuda.a").exists()


def revision():
    told = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return told.stdout.strip() or None


def copy_data(folder):
    for name in DATA:
        target = folder / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target)
        else:
            shutil.copyfile(ROOT / name, target)
    (folder / "python").mkdir()
    for name in SCRIPTS:
        shutil.copyfile(ROOT / "tools" / "python" / name, folder / "python" / name)


def pack(build, folder, programs=PROGRAMS, may_be_missing=MAY_BE_MISSING):
    """Writes the folder anew. Raises PackError."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "build.json").exists():
        raise PackError(f"{folder} holds something else; name a folder that is new, empty or an older pack")
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("bin", "lib"):
        (folder / part).mkdir(parents=True)
    libraries = {}
    for name in (*programs, *may_be_missing):
        program = build / "bin" / name
        if not program.exists():
            if name in may_be_missing:
                continue
            raise PackError(f"{program} is not built; build the target {name}")
        libraries.update(needed_libraries(program))
        install(program, folder / "bin" / name, "$ORIGIN/../lib")
    for name, path in libraries.items():
        install(pathlib.Path(os.path.realpath(path)), folder / "lib" / name, "$ORIGIN")
    copy_data(folder)
    facts = {"revision": revision(), "cuda": has_cuda(build)}
    (folder / "build.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "run.sh").write_text(RUN, encoding="utf-8")
    (folder / "run.sh").chmod(0o755)
    return facts


def main():
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        facts = pack(arguments.build, arguments.folder)
    except PackError as error:
        sys.exit(f"tools/gpu_check.sh: {error}")
    if not facts["cuda"]:
        print("tools/gpu_check.sh: there is no nvcc here, so that the pack has no CUDA backend", file=sys.stderr)
    size = sum(file.stat().st_size for file in arguments.folder.rglob("*") if file.is_file())
    print(f"{arguments.folder}: {size / 2**20:.0f} MiB; on a machine with an NVIDIA GPU: run.sh", file=sys.stderr)


if __name__ == "__main__":
    main()
