"""Measures what the project promises, each as a ratio of one run on one machine: `nox -s bench`.

Exit code 1 when a promise isn't kept. `-- collector`, `-- container`, `-- resume`, `-- kernel` measure one (all but
the last without being named: it needs a GPU); `--gib` sizes the collector's tensors.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

WHICH = ("collector", "container", "resume", "kernel")


def main() -> int:
    """Run the chosen benchmarks; returns 1 when one of them broke its promise."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("which", nargs="*", metavar="WHICH", help=", ".join(WHICH))
    parser.add_argument("--gib", type=float, default=4, help="size of each tensor of the pair, in GiB (default 4)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--measures", action="store_true", help="container: cells with all their measures")
    parser.add_argument("--folder", type=Path, default=Path("out/bench"), help="where to write what is measured")
    options = parser.parse_args()
    which = options.which or WHICH[:3]
    if not set(WHICH).issuperset(which):
        parser.error(f"choose from {', '.join(WHICH)}, not {' '.join(which)}")
    kept = [_kept(name, options) for name in WHICH if name in which]
    return 0 if all(kept) else 1


def _kept(name: str, options: argparse.Namespace) -> bool:
    from benchmarks import collector, container, kernel, resume

    if name == "collector":
        return collector.measure(options.folder, gib=options.gib, repeats=options.repeats)
    if name == "container":
        return container.measure(repeats=options.repeats, measures=options.measures)
    if name == "resume":
        return resume.measure(repeats=options.repeats)
    return kernel.measure(options.folder, repeats=options.repeats)


sys.exit(main())
