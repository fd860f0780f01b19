"""How long the parts of a kvtier trace were busy at the same time.

Run as a program: trace_overlap.py TRACE.json
"""

import argparse
import json
import sys


def load_spans(path):
    """(track, name, begin, end) of every span, seconds; rows "track (2)" count as their track."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    tracks = {(event["pid"], event["tid"]): event["args"]["name"]
              for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    return [(tracks[event["pid"], event["tid"]], event["name"], event["ts"] / 1e6,
             (event["ts"] + event["dur"]) / 1e6)
            for event in events if event["ph"] == "X"]


def part_of(track, name):
    """What a span is work of: "copies", "disk reads", "attention", or None."""
    if name.startswith("copy"):
        return "copies"
    if track.startswith("disk/read"):
        return "disk reads"
    if name == "attend":
        return "attention"
    return None


def overlaps(spans):
    """{frozenset of parts: seconds during which exactly these were busy}."""
    edges = []
    for track, name, begin, end in spans:
        part = part_of(track, name)
        if part and end > begin:
            edges.append((begin, 1, part))
            edges.append((end, -1, part))
    edges.sort(key=lambda edge: edge[0])
    active, seconds, since = {}, {}, 0.0
    for when, change, part in edges:
        busy = frozenset(p for p, n in active.items() if n > 0)
        if busy:
            seconds[busy] = seconds.get(busy, 0.0) + when - since
        active[part] = active.get(part, 0) + change
        since = when
    return seconds


def busy_together(seconds, *parts):
    """Seconds during which all of `parts` were busy, whatever else was."""
    return sum(s for busy, s in seconds.items() if busy.issuperset(parts))


def describe(path):
    seconds = overlaps(load_spans(path))
    alone = {part: busy_together(seconds, part) for part in ("attention", "disk reads", "copies")}
    two = sum(s for busy, s in seconds.items() if len(busy) >= 2)
    three = sum(s for busy, s in seconds.items() if len(busy) == 3)
    return (
        f"overlap    at least two of attention, disk reads and copies were busy at once for "
        f"{two:.2f} s, all three for {three:.3f} s\n"
        f"           (attention {alone['attention']:.2f} s, disk reads {alone['disk reads']:.2f} s, "
        f"{share(busy_together(seconds, 'attention', 'disk reads'), alone['disk reads'])} of them "
        f"under attention; copies {alone['copies']:.2f} s, "
        f"{share(busy_together(seconds, 'attention', 'copies'), alone['copies'])} under attention)")


def share(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", metavar="TRACE.json", help="what kvtier run --trace wrote")
    options = parser.parse_args()
    try:
        print(describe(options.trace))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"trace_overlap: {options.trace}: {error or type(error).__name__}; give a trace of kvtier run --trace",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
