"""Measures what the project promises, each as a ratio of one run on one machine: `nox -s bench`.

Exit code 1 when a promise isn't kept. `-- collector`, `-- container`, `-- resume` measure one; `--gib` sizes the
collector's tensors.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import collector, container, resume


def main() -> int:
    """Run the chosen benchmarks; returns how many broke their promise, at most 1."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("which", nargs="*", metavar="WHICH", help="collector, container, resume")
    parser.add_argument("--gib", type=float, default=4, help="size of each tensor of the pair, in GiB (default 4)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--folder", type=Path, default=Path("out/bench"), help="where to write what is measured")
    options = parser.parse_args()
    which = options.which or ["collector", "container", "resume"]
    if not {"collector", "container", "resume"}.issuperset(which):
        parser.error(f"choose from collector, container, resume, not {' '.join(which)}")
    kept = []
    if "collector" in which:
        kept.append(collector.measure(options.folder, gib=options.gib, repeats=options.repeats))
    if "container" in which:
        kept.append(container.measure(repeats=options.repeats))
    if "resume" in which:
        kept.append(resume.measure(repeats=options.repeats))
    return 0 if all(kept) else 1


sys.exit(main())
