"""report.json: the published format (`h3_bitwise_reuse`), with everything more under one key of our own.

Loading a published report and writing it again gives the same bytes; what a newer writer put beside the known keys is
kept.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.capture import Status
from harness.errors import BadInput
from harness.files import write_text

FORMAT: Literal[1] = 1
"""The version of `bitmatrix`, our own part of a report."""

VERSUS = "vs "
_LARGEST_BYTES = 256 << 20

Count = Annotated[int, Field(ge=0)]


class _Published(BaseModel):
    """A level of the published format: keys that a newer writer adds are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Own(BaseModel):
    """A level of our own: closed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Comparison(_Published):
    """One tensor of a cell against the same tensor of a reference; `harness.compare.Comparison` says what it means."""

    equal: bool
    differ: Count
    numel: Count
    max_abs: Annotated[float, Field(ge=0)] | None


class Case(_Published):
    """One case: the outputs in the op's order, and each gradient by its input's name."""

    out: list[Comparison]
    grads: dict[str, Comparison]


class CellResult(BaseModel):
    """One cell: what it is, and a `vs <reference>` section for each reference, case -> tensors."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[Annotated[str, Field(pattern="^vs .")], dict[str, Case]] = Field(init=False)

    source: str

    @property
    def versus(self) -> dict[str, dict[str, Case]]:
        """Reference -> case -> comparisons."""
        return {name.removeprefix(VERSUS): cases for name, cases in (self.__pydantic_extra__ or {}).items()}


class Environment(_Published):
    """The stack of the first reference, as the published format describes it."""

    gpu: str | None
    capability: list[int] | None
    torch: str | None
    cuda: str | None
    python: str | None
    tf32: bool | None
    libraries: dict[str, str | None]
    mode_environment: dict[str, dict[str, str]]


class CellDetails(_Own):
    """What became of a requested cell."""

    status: Status
    reason: str | None
    log: str | None
    """Where its log lies, relative to the run's folder."""
    candidate: str
    mode: str | None
    stack: str
    required: bool
    seconds: float | None
    key: str | None
    overrides: list[str] = []
    """The aten operators that its mode replaced, with the dispatch key."""
    note: str | None = None


class StackDetails(_Own):
    """The environment that a stack's cells ran in."""

    status: str
    reason: str | None
    base: str | None
    image: str | None
    image_id: str | None
    lock: str | None
    lock_sha256: str | None
    python: str | None
    torch: str | None
    cuda: str | None
    cpu: str | None
    gpu: str | None
    driver: str | None
    distributions: dict[str, str]


class Classes(_Own):
    """Groups of cells that are equal in every bit; a cell that equals no other is a group of one."""

    whole: list[list[str]]
    """Equal in every tensor of every case."""
    by_case: dict[str, dict[str, list[list[str]]]]
    """Case -> tensor -> groups."""


class Details(_Own):
    """Everything that the published format has no place for."""

    format: Literal[1] = FORMAT
    run: str
    created: str
    """UTC, ISO 8601."""
    device: str
    device_model: str
    isolation: str
    narrowed: list[str]
    """The options that narrowed the run; empty for the full order. A narrowed one isn't comparable with it."""
    outputs: list[str]
    gradients: list[str]
    references: list[str]
    cells: dict[str, CellDetails]
    stacks: dict[str, StackDetails]
    classes: Classes
    digests: dict[str, dict[str, dict[str, str]]]
    """Cell -> case -> tensor -> SHA-256 of its bytes."""
    inputs: dict[str, str | dict[str, str]]
    inputs_pinned: bool
    library: dict[str, Any] | None
    """The kernel library: its digest, compiler and flags."""
    commit: str | None
    dirty: bool | None


class Report(_Published):
    """A report. `rl_kernel_commit` and `tracked_tree_dirty` speak of the source of the kernel under test."""

    kind: str
    rfc: str
    op: str
    rl_kernel_commit: str | None
    tracked_tree_dirty: bool | None
    environment: Environment
    cases: list[Annotated[int, Field(ge=1)]]
    results: dict[str, CellResult]
    bitmatrix: Details | None = None


def load(path: Path) -> Report:
    """Read a report, published or our own.

    Raises BadInput with the file, the place and what to do: no report, cut short, NaN or a number beyond double,
    a name twice, a newer format.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: can't be read ({error.strerror})") from error
    if len(content) > _LARGEST_BYTES:
        raise BadInput(f"{path}: larger than {_LARGEST_BYTES >> 20} MiB; this is no report")
    data = _parse(path, content)
    _refuse_newer(path, data)
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "document"
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadInput(f"{path}: {place}: {first['msg']}{more}; this is not a report of this format") from error


def dumps(report: Report) -> str:
    """The report's text: as published, without a newline at its end."""
    data = report.model_dump()
    if report.bitmatrix is None:
        del data["bitmatrix"]
    return json.dumps(data, indent=2, allow_nan=False)


def write(path: Path, report: Report) -> None:
    """Write the report, whole or not at all."""
    write_text(path, dumps(report))


def classes(digests: dict[str, dict[str, dict[str, str]]]) -> Classes:
    """Group the cells by equal digests (cell -> case -> tensor -> digest), in the order in which cells come."""
    by_case: dict[str, dict[str, list[list[str]]]] = {}
    for cases in digests.values():
        for case, tensors in cases.items():
            for name in tensors:
                by_case.setdefault(case, {}).setdefault(name, [])
    for case, tensors_of in by_case.items():
        for name in tensors_of:
            holders = {cell: cases[case][name] for cell, cases in digests.items() if name in cases.get(case, {})}
            tensors_of[name] = _groups(holders)
    whole = _groups({cell: json.dumps(cases, sort_keys=True) for cell, cases in digests.items()})
    return Classes(whole=whole, by_case=by_case)


def _groups(labels: dict[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for cell, label in labels.items():
        groups.setdefault(label, []).append(cell)
    return list(groups.values())


def _parse(path: Path, content: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(pairs)
        if len(known) != len(pairs):
            twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
            raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
        return known

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is no finite number")
        return number

    try:
        return json.loads(content, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise BadInput(f"{path}: not valid JSON ({reason}); was it cut short? Get the file again") from error


def _refuse_newer(path: Path, data: Any) -> None:
    details = data.get("bitmatrix") if isinstance(data, dict) else None
    number = details.get("format") if isinstance(details, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise BadInput(f"{path}: this report is of format {number}; this bitmatrix reads up to {FORMAT}: update it")
