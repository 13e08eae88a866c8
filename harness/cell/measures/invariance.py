"""Batch invariance: what a row's results are must not depend on which rows, and how many, share the call.

Outputs and row gradients (every result with rows) are held bit for bit against the same row alone: in full batches, in
sub-batches that cover a full batch, in batches of every awkward size with the row in front, in the middle and at the
back, and in a reversed batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.cell.measures.bench import Bench, Bytes, Impossible

STRICT = (64, 257, 2048)
QUICK = (64,)
_UNEVEN = (1, 2, 3, 5, 7, 11, 16, 31, 32, 33, 64, 65, 128, 129, 255, 256, 257)
_MOST_FAILURES = 8


class _Late(Exception):
    """The measure's time is over; what was compared until now stands."""


@dataclass(kw_only=True)
class _Tally:
    """Rows compared and rows that differ, by check and tensor, and the first failures in words' parts."""

    checks: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    first: list[dict[str, Any]] = field(default_factory=list)

    def compare(self, check: str, batch: int, rows: Sequence[int], found: Mapping[str, Bytes],
                expected: Mapping[str, Bytes]) -> None:  # fmt: skip
        """Hold a batch's rows against what is expected of them; `rows` are their places in the batch."""
        for name, ours in found.items():
            count = self.checks.setdefault(check, {}).setdefault(name, {"compared": 0, "differ": 0})
            unlike = np.flatnonzero((ours != expected[name]).any(axis=1))
            count["compared"] += len(ours)
            count["differ"] += int(unlike.size)
            if unlike.size and len(self.first) < _MOST_FAILURES:
                at = int(unlike[0])
                byte = int(np.argmax(ours[at] != expected[name][at]))
                self.first.append(
                    {"check": check, "tensor": name, "batch": batch, "row": int(rows[at]), "byte": byte,
                     "expected": _hex(expected[name][at], byte), "found": _hex(ours[at], byte)}
                )  # fmt: skip


def measure(bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the check, `quick` or as strict as the published one. `complete` says whether time was enough for all.

    Raises Impossible for an op whose results have no rows.
    """
    if not any(tensor.shape[:1] == ("T",) for tensor in bench.op.results()):
        raise Impossible("no result of this op has rows")
    quick = bool(settings["quick"])
    tally = _Tally()
    complete = True
    try:
        _all(bench, tally, QUICK if quick else STRICT)
    except _Late:
        complete = False
    return {"quick": quick, "complete": complete, "checks": tally.checks, "first": tally.first}


def _all(bench: Bench, tally: _Tally, batches: Sequence[int]) -> None:
    largest = max(batches)
    alone = _alone(bench, largest, tally, batches)
    for size in _sizes(largest):
        _probes(bench, tally, size, alone)


def _alone(bench: Bench, largest: int, tally: _Tally, batches: Sequence[int]) -> dict[str, Bytes]:
    """Every row of the largest batch by itself; full batches, their parts and their reverse are held against it."""
    distinct = min(largest, max(bench.job.cases))
    single = [_called(bench, [row]) for row in range(distinct)]
    alone = {name: np.concatenate([one[name] for one in single]) for name in single[0]}
    for size in batches:
        rows = np.arange(size) % distinct
        expected = {name: lines[rows] for name, lines in alone.items()}
        full = _called(bench, range(size))
        tally.compare("alone", size, range(size), full, expected)
        for cover in ([size // 2, size - size // 2], list(_uneven(size))):
            parts, start = [], 0
            for length in cover:
                parts.append(_called(bench, range(start, start + length)))
                start += length
            joined = {name: np.concatenate([part[name] for part in parts]) for name in full}
            tally.compare("sub_batches", size, range(size), joined, full)
        backwards = _called(bench, range(size - 1, -1, -1))
        tally.compare("reversed", size, range(size), {name: lines[::-1] for name, lines in backwards.items()}, full)
    return alone


def _probes(bench: Bench, tally: _Tally, size: int, alone: Mapping[str, Bytes]) -> None:
    """Three rows, each once in front, in the middle and at the back of a batch of other rows."""
    distinct = len(next(iter(alone.values())))
    probes = list(dict.fromkeys((0, distinct // 2, distinct - 1)))
    places = list(dict.fromkeys((0, size // 2, size - 1)))
    for turn in range(len(probes)):
        rows = [(7 * index + 3) % distinct for index in range(size)]
        for place, at in enumerate(places):
            rows[at] = probes[(place + turn) % len(probes)]
        found = _called(bench, rows)
        chosen = [rows[at] for at in places]
        tally.compare(
            "probes",
            size,
            places,
            {name: lines[places] for name, lines in found.items()},
            {name: lines[chosen] for name, lines in alone.items()},
        )


def _called(bench: Bench, rows: Sequence[int]) -> dict[str, Bytes]:
    if bench.late:
        raise _Late
    return bench.row_bytes(rows)


def _sizes(largest: int) -> list[int]:
    """1 to 9, then the neighbours of every power of two up to the largest."""
    powers = [1 << power for power in range(4, largest.bit_length()) if 1 << power <= largest]
    return [*range(1, 10), *(power + step for power in powers for step in (-1, 0, 1))]


def _uneven(size: int) -> Iterator[int]:
    left, turn = size, 0
    while left:
        length = min(left, _UNEVEN[turn % len(_UNEVEN)])
        yield length
        left, turn = left - length, turn + 1


def _hex(line: Bytes, byte: int) -> str:
    """The four bytes around the first that differs, in memory's order."""
    start = byte - byte % 4
    return line[start : start + 4].tobytes().hex()
