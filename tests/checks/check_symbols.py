#!/usr/bin/env python3
"""Checks that static libraries refer to nothing that prints, ends the process or handles signals.

usage: check_symbols.py NM LIBRARY...

Looks at undefined symbols of the archive's members, thus at our own code and at the inline functions of
headers compiled into it. Prints one line per violation; exit status 1 if any.
"""

import re
import subprocess
import sys

FORBIDDEN = {
    # Standard output and error. fprintf and fwrite need one of these two objects to reach them.
    "stdout", "stderr", "printf", "__printf_chk", "vprintf", "__vprintf_chk", "puts", "putchar",
    "perror", "psignal", "err", "warn", "dprintf", "__dprintf_chk", "syslog", "openlog",
    "std::cout", "std::cerr", "std::clog", "std::wcout", "std::wcerr", "std::wclog",
    "std::ios_base::Init::Init",
    # Ends of the process.
    "abort", "exit", "_exit", "_Exit", "quick_exit", "raise", "kill",
    # Handlers of the process.
    "signal", "sigaction", "atexit", "at_quick_exit", "std::set_terminate",
}

# (library, member, symbol) as regular expressions: what a header of somebody else inlines into our code.
# Every entry says why it can stay.
ALLOWED = [
    # nvcc's own start-up code gives the kernels back to the CUDA runtime at exit.
    (r"libkvtier_gpu_cuda\.a$", r"\.cu\.o$", "atexit"),
]


def undefined(nm, library):
    """(member, demangled symbol) of every undefined symbol in the archive."""
    text = subprocess.run([nm, "--demangle", "--undefined-only", library], check=True,
                          capture_output=True, text=True).stdout
    member = ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            member = line[:-1]
        elif line.strip().startswith("U "):
            # Neither the version (printf@GLIBC_2.2.5) nor the parameters matter here.
            yield member, re.split("[@(]", line.strip()[2:])[0]


def violations(nm, library, allowed=None):
    for member, symbol in undefined(nm, library):
        if symbol not in FORBIDDEN:
            continue
        if any(re.search(a, library) and re.search(b, member) and re.fullmatch(c, symbol)
               for a, b, c in (ALLOWED if allowed is None else allowed)):
            continue
        yield f"{library}({member}) refers to {symbol}"


def main():
    nm, *libraries = sys.argv[1:]
    found = [v for library in libraries for v in violations(nm, library)]
    for violation in found:
        print(violation)
    if not libraries:
        print("no libraries given")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
