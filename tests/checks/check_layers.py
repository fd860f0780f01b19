#!/usr/bin/env python3
"""Checks that #include lines follow the arrows between the project's folders.

    runtime -> gpu, cpu, storage, lsh     gpu -> cpu     lsh -> cpu     cpu, storage -> nothing
    tools, tests, bench -> any room       tools/run -> the public API of runtime

CUDA headers appear only under a folder named cuda. Prints one line per violation; exit status 1 if any.
"""

import re
import sys
from pathlib import Path

ROOMS = {
    "runtime": {"gpu", "cpu", "storage", "lsh"},
    "gpu": {"cpu"},
    "lsh": {"cpu"},
    "cpu": set(),
    "storage": set(),
}
FREE = {
    "tools": {"tools"} | set(ROOMS),
    "tests": {"tests", "tools"} | set(ROOMS),
    "bench": {"bench", "tests", "tools"} | set(ROOMS),
}
PUBLIC_OF_RUNTIME = ["runtime/kvtier.hpp", "runtime/trace_writer.hpp"]
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".c"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nvtx3/|nvToolsExt|nvml|cub/|thrust/|cooperative_groups)")


def includes(path):
    """(line number, quoted path or None, bracketed path or None) of every #include."""
    text = path.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(1 if match[1] else 2)) + 1, match[1], match[2]


def closure(root, headers):
    """The headers and all project headers that they include."""
    seen, waiting = set(), list(headers)
    while waiting:
        name = waiting.pop()
        if name in seen or not (root / name).is_file():
            continue
        seen.add(name)
        waiting += [quoted for _, quoted, _ in includes(root / name) if quoted]
    return seen


def sources(root):
    for folder in sorted(set(ROOMS) | set(FREE)):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def violations(root):
    public = closure(root, PUBLIC_OF_RUNTIME)
    for path in sources(root):
        name = path.relative_to(root)
        room = name.parts[0]
        allowed = FREE.get(room, ROOMS.get(room, set()) | {room})
        for line, quoted, bracketed in includes(path):
            where = f"{name}:{line}: "
            if CUDA_HEADER.match(quoted or bracketed) and "cuda" not in name.parts[:-1]:
                yield where + f"CUDA header {quoted or bracketed} outside a folder named cuda"
            if quoted is None or (name.parent.parts[:2] == ("tests", "install")):
                continue
            if not (root / quoted).is_file():
                yield where + f'"{quoted}" is not a path from the project\'s root'
            elif Path(quoted).parts[0] not in allowed:
                yield where + f"{room} must not include {quoted}"
            elif name.parts[:2] == ("tools", "run") and not (
                    quoted in public or quoted.startswith("tools/")):
                yield where + f"tools/run must not include {quoted}: not in runtime's public API"


def main():
    root = Path(sys.argv[1])
    found = list(violations(root))
    for violation in found:
        print(violation)
    if not any(True for _ in sources(root)):
        print(f"no sources under {root}")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
