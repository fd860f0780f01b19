#!/usr/bin/env python3
"""Keeps code in README.md equal to files that tests compile and run.

    readme_example.py check ROOT     exit status 1 and a message per difference
    readme_example.py update ROOT    writes the files into README.md

A block is marked by a comment on the line before it:

    <!-- example: tests/install/example.cpp -->
    ```cpp
    ...
    ```
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"(?P<head>^<!-- example: (?P<file>\S+) -->\n```cpp\n)(?P<code>.*?)(?P<tail>^```$)",
                   re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- example:")


def update(text, read):
    """`text` with every marked block replaced by what read(file) gives."""
    return BLOCK.sub(lambda m: m["head"] + read(m["file"]) + m["tail"], text)


def problems(text, read):
    """One message per thing that is wrong with the marked blocks of `text`."""
    blocks = list(BLOCK.finditer(text))
    if len(blocks) != len(MARKER.findall(text)):
        yield "a marker is not followed by a ```cpp block"
    if not blocks:
        yield "no marked block"
    for block in blocks:
        if block["code"] != read(block["file"]):
            yield f"the block of {block['file']} differs from the file; run readme_example.py update"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("check", "update"):
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[2])
    readme = root / "README.md"

    def read(name):
        return (root / name).read_text(encoding="utf-8")

    text = readme.read_text(encoding="utf-8")
    if sys.argv[1] == "update":
        readme.write_text(update(text, read), encoding="utf-8")
        return 0
    found = list(problems(text, read))
    for problem in found:
        print(f"README.md: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
