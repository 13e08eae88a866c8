"""A report as static figures, SVG and PNG: the heat map, and error and latency by case.

Drawn by matplotlib, which only this needs: `pip install -e '.[figures]'`.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import render
from harness.errors import BadInput, Unavailable
from harness.files import write_bytes
from harness.grid import Grid, Pair
from harness.report import Report

_SETTINGS: Any = {
    "svg.hashsalt": "bitmatrix",  # the same report gives the same file
    "font.size": 8,
    "axes.titlesize": 9,
    "svg.fonttype": "path",  # no reader needs our font
    # A name is never mathematics, whatever dollars it holds.
    "text.parse_math": False,
}
_EXACT = 0.1
"""Where equal bits stand on a logarithmic scale of distances."""
_MOST_SHOWN = 10**30
"""A larger number has no place on an axis; only a report that was made up holds one."""
_MOST_CELLS = 60
"""Rows that a figure can show; the rest are in report.html."""


def draw(report: Report, folder: Path) -> list[Path]:
    """Write `heatmap`, and `measures` where the report has any, each as .svg and .png; returns the files.

    Raises Unavailable without matplotlib, BadInput when the report has nothing to draw.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise Unavailable("figures need matplotlib: pip install -c constraints.txt -e '.[figures]'") from error
    grid = Grid(report)
    mpl.use("Agg")
    # A letter that its font lacks is drawn as a box: worth no warning.
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings(action="ignore", category=UserWarning):
        figures = {"heatmap": _heat_map(grid), "measures": _measures(grid)}
        drawn = {name: figure for name, figure in figures.items() if figure is not None}
        if not drawn:
            raise BadInput("the report compares nothing and measured nothing: there is no figure to draw")
        return [
            _written(figure, folder / f"{name}.{kind}") for name, figure in drawn.items() for kind in ("svg", "png")
        ]


def _written(figure: Any, path: Path) -> Path:
    stream = io.BytesIO()
    kind = path.suffix[1:]
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(stream, format=kind, dpi=160, metadata=metadata, bbox_inches="tight")
    write_bytes(path, stream.getvalue())
    return path


def _heat_map(grid: Grid) -> Any:
    """Cells by cases and tensors against the first reference that has any: median ULP, or the largest difference."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    reference = next((name for name in grid.references if _rows(grid, name)), None)
    if reference is None:
        return None
    rows = _rows(grid, reference)[:_MOST_CELLS]
    cases, labels = grid.cases, grid.columns.labels
    places = [(case, label) for case in cases for label in labels]
    found = {cell: {(pair.case, pair.label): pair for pair in grid.pairs(cell, reference)} for cell in rows}
    ulps = any(pair.detail for of in found.values() for pair in of.values())
    values = [[_value(found[cell].get(place), ulps=ulps) for place in places] for cell in rows]
    finite = [value for row in values for value in row if value > 0]
    low, high = (_EXACT, max([512.0, *finite])) if ulps else (min(finite, default=1.0), max(finite, default=1.0) * 10)
    figure = Figure(figsize=(2.2 + 0.42 * len(places), 1.2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    shown = [[math.nan if value < 0 else max(value, low) for value in row] for row in values]
    image = axes.imshow(shown, aspect="auto", cmap="YlOrRd", norm=LogNorm(low, high))
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            dark = value > 0 and math.log(max(value, low) / low) > 0.6 * math.log(high / low)
            axes.text(x, y, _shown(value, ulps=ulps), ha="center", va="center", size=6, color="w" if dark else "k")
    axes.set_yticks(range(len(rows)), [render.line(cell)[:40] for cell in rows])
    axes.set_xticks(range(len(places)), [render.line(label)[:12] for _, label in places], rotation=60)
    for number, case in enumerate(cases):
        axes.text((number + 0.5) * len(labels) - 0.5, -0.7, f"T = {render.line(case)[:20]}", ha="center", va="bottom")
        if number:
            axes.axvline(number * len(labels) - 0.5, color="k", linewidth=1)
    axes.set_title(f"{_title(grid.report)}, vs {render.line(reference)[:40]}", pad=20)
    words = "median distance in ULP of elements that differ" if ulps else "largest absolute difference"
    bar = figure.colorbar(image, ax=axes, label=words, fraction=0.03)
    bar.ax.yaxis.set_major_formatter(_plain)
    return figure


def _rows(grid: Grid, reference: str) -> list[str]:
    return [cell for cell in grid.cells if any(True for _ in grid.pairs(cell, reference))]


def _value(pair: Pair | None, *, ulps: bool) -> float:
    """What a place is coloured by: 0 where bits are equal, -1 where nothing is known."""
    if pair is None:
        return -1
    if pair.comparison.equal:
        return 0
    known = pair.detail.ulp_median if ulps and pair.detail else pair.comparison.max_abs
    return -1 if known is None else float(min(known, _MOST_SHOWN))


def _shown(value: float, *, ulps: bool) -> str:
    if value <= 0:
        return "=" if value == 0 else ""
    return f"{value:.3g}" if ulps and value < 1000 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def _measures(grid: Grid) -> Any:
    """Error of each result and latency, by case; a line a cell."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    measures = grid.measures
    errors = {cell: taken.accuracy.result for cell, taken in measures.items() if taken.accuracy}
    times = {cell: taken.latency.result for cell, taken in measures.items() if taken.latency}
    if not any([*errors.values(), *times.values()]):
        return None
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle(_title(grid.report))
    error, forward, whole = figure.subplots(1, 3)
    shown = [int(case) for case in grid.cases if case.isdecimal() and len(case) < 10]
    label = next(iter(grid.columns.outputs), "out")
    for cell, found in list(errors.items())[:_MOST_CELLS]:
        cases = found.cases if found else {}
        relative = {case: of[label].rms_abs / of[label].scale for case, of in cases.items() if _scaled(of.get(label))}
        _line(error, relative, cell)
    for cell, timed in list(times.items())[:_MOST_CELLS]:
        cases_of = timed.cases if timed else {}
        _line(forward, {case: one.forward.median_us for case, one in cases_of.items() if one.forward}, cell)
        _line(whole, {case: one.whole.median_us for case, one in cases_of.items()}, cell)
    for axes, name in (
        (error, f"RMS error of {render.line(label)[:20]} against FP64 / its RMS"),
        (forward, "forward, median µs"),
        (whole, "forward and backward, median µs"),
    ):
        drawn = any(len(line.get_xdata()) for line in axes.lines)
        axes.set(title=name, xlabel="T (rows)", xscale="log", yscale="log" if drawn else "linear")
        axes.set_xticks(shown, [str(case) for case in shown])
        axes.xaxis.set_minor_locator(NullLocator())
        if drawn:
            axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(visible=True, linewidth=0.3)
    handles, names = whole.get_legend_handles_labels() if times else error.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, max(1, len(names))), frameon=False)
    return figure


def _plain(value: float, _: float) -> str:
    """A tick's label without mathematics: `1e-07`, `200`, `1e+06`."""
    return f"{value:g}"


def _scaled(error: Any) -> bool:
    return error is not None and error.scale > 0 and error.rms_abs > 0


_MARKERS = "os^vD<>pXP*h"


def _line(axes: Any, values: Mapping[str, float], cell: str) -> None:
    # Zero has no place on a logarithmic axis, nor has what isn't finite.
    points = sorted(
        (int(case), value)
        for case, value in values.items()
        if case.isdecimal() and len(case) < 10 and 0 < value < _MOST_SHOWN
    )
    number = len(axes.lines)
    # Shapes and dashes beside colours: a figure is printed in grey, too.
    axes.plot(
        [case for case, _ in points],
        [value for _, value in points],
        marker=_MARKERS[number % len(_MARKERS)],
        linestyle=("-", "--", ":")[number // 4 % 3],
        markersize=4,
        linewidth=1,
        label=render.line(cell)[:40],
    )


def _title(report: Report) -> str:
    model = report.environment.gpu or (report.bitmatrix.device_model if report.bitmatrix else None) or "unknown device"
    return f"{render.line(report.op)[:60]} on {render.line(model)[:60]}"
