"""report.json: the published format (`h3_bitwise_reuse`), with everything more under one key of our own.

Loading a published report and writing it again gives the same bytes; what a newer writer put beside the known keys is
kept, in its place.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from harness.capture import Status
from harness.detail import Detail
from harness.errors import BadInput
from harness.files import write_text
from harness.measure import Measures

FORMAT: Literal[2] = 2
"""The version of `bitmatrix`, our own part of a report: 2 added pairs, measures and verdicts. Older ones are read."""

VERSUS = "vs "
_LARGEST_BYTES = 256 << 20
_DEEPEST = 64
"""Levels; a report has 7. Python's own limit is another in each version, and not the same for reading and writing."""

_READING = "reading"
"""The validation context of `load`. Elsewhere every level is closed, so that a misspelt key can't be published."""

Count = Annotated[int, Field(ge=0)]
Severity = Literal["note", "warning", "error"]


class _Published(BaseModel):
    """A level of the published format: what is read keeps the keys of a newer writer, and the order of all keys."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _order: tuple[str, ...] = PrivateAttr(default=())
    _foreign: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def _knows(cls, key: str) -> bool:
        return key in cls.model_fields

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if info.context != _READING or not isinstance(data, dict):
            return read(data)
        model = read({key: value for key, value in data.items() if cls._knows(key)})
        model._order = tuple(data)
        model._foreign = {key: value for key, value in data.items() if not cls._knows(key)}
        return model

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = {**write(self), **self._foreign}
        return {**{key: values[key] for key in self._order}, **values}


class _Own(BaseModel):
    """A level of our own: closed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PairDetail(_Own):
    """How a tensor differs from a reference's; `harness.detail.Detail` says what each figure means.

    `bits` are the two patterns at `first`, this cell's in front. `kinds` counts what no distance describes, by kind.
    """

    ulp_max: Count | None
    ulp_median: Count | None
    ulp: dict[Annotated[str, Field(pattern="^[1-9][0-9]{0,19}$")], Count]
    """Elements by distance: each power of two stands for the distances from it to the next."""
    first: list[Count]
    bits: Annotated[list[Annotated[str, Field(pattern="^[0-9a-f]{1,16}$")]], Field(min_length=2, max_length=2)]
    rows: Count
    rows_differ: Count
    kinds: dict[Literal["signed_zero", "infinity", "nan", "nan_payload"], Count]

    @classmethod
    def of(cls, detail: Detail) -> Self:
        """As the comparison found it."""
        kinds = {name: getattr(detail, name) for name in ("signed_zero", "infinity", "nan", "nan_payload")}
        return cls(
            ulp_max=detail.ulp_max,
            ulp_median=detail.ulp_median,
            ulp={str(power): count for power, count in detail.histogram.items()},
            first=list(detail.first_index),
            bits=list(detail.first_bits),
            rows=detail.rows,
            rows_differ=detail.rows_differ,
            kinds={name: count for name, count in kinds.items() if count},  # type: ignore[misc]
        )

    def swapped(self) -> Self:
        """The same pair seen from its other side."""
        return self.model_copy(update={"bits": self.bits[::-1]})


VerdictKind = Literal[
    "reference",
    "identical",
    "other_order",
    "reduced_precision",
    "not_batch_invariant",
    "not_repeatable",
    "inert",
    "differs",
    "not_comparable",
]


class Verdict(_Own):
    """What a cell turned out to be: kinds, the most important first, in a sentence, with what led there."""

    kinds: list[VerdictKind]
    reference: str | None
    """The cell that it was held against; null for one that can't be compared."""
    sentence: str
    evidence: list[str]


class Comparison(_Published):
    """One tensor of a cell against the same tensor of a reference; `harness.compare.Comparison` says what it means."""

    equal: bool
    differ: Count
    numel: Count
    max_abs: Annotated[float, Field(ge=0)] | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.differ > (0 if self.equal else self.numel):
            raise ValueError(f"{self.differ} of {self.numel} elements differ, and equal is {str(self.equal).lower()}")
        return self


class Case(_Published):
    """One case: the outputs in the op's order, and each gradient by its input's name."""

    out: list[Comparison]
    grads: dict[str, Comparison]


class CellResult(_Published):
    """One cell: what it is, and a `vs <reference>` section for each reference, case -> tensors."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[Annotated[str, Field(pattern="^vs .")], dict[str, Case]] = Field(init=False)

    source: str

    @classmethod
    def _knows(cls, key: str) -> bool:
        return super()._knows(key) or (key.startswith(VERSUS) and key != VERSUS)

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
    inert: bool = False
    """Whether its mode's activation replaced nothing and set nothing that torch or the environment shows."""
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


class Finding(_Own):
    """One thing that isn't as pinned, or can't be shown to be; `harness.finding` says what the severities mean."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    severity: Severity
    about: str
    """A stack, a cell, or a part of the run."""
    message: str


class Classes(_Own):
    """Groups of cells that are equal in every bit; a cell that equals no other is a group of one."""

    whole: list[list[str]]
    """Equal in every tensor of every case."""
    by_case: dict[str, dict[str, list[list[str]]]]
    """Case -> tensor -> groups."""


class Details(_Own):
    """Everything that the published format has no place for."""

    format: Literal[1, 2] = FORMAT
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
    library: dict[str, str | list[str]] | None
    """The kernel library: its file name, digest, architecture, compiler and flags."""
    findings: list[Finding | str] = []
    """Where what ran isn't what was pinned. A text is of a report from before there were severities."""
    commit: str | None
    dirty: bool | None
    pairs: dict[str, dict[str, dict[str, dict[str, PairDetail]]]] | None = None
    """Cell -> reference -> case -> tensor -> how it differs; only what differs."""
    measures: dict[str, Measures] | None = None
    """Cell -> what it measured."""
    verdicts: dict[str, Verdict] | None = None
    """Cell -> what it turned out to be, when the report was made."""

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Format 1 had none of them, and is written back as it was read.
        later = ("pairs", "measures", "verdicts")
        return {name: value for name, value in write(self).items() if value is not None or name not in later}


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
    a name twice, nested too deeply, a comparison that contradicts itself, a newer format.
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
        return Report.model_validate(data, context=_READING)
    except ValidationError as error:
        first = error.errors()[0]
        place = _printable(".".join(map(str, first["loc"]))) or "document"
        problem = first["msg"].removeprefix("Value error, ")
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadInput(f"{path}: {place}: {problem}{more}; this is not a report of this format") from error


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
        known: dict[str, Any] = {}
        for name, value in pairs:
            if name in known:
                raise ValueError(f"the key '{_printable(name[:60])}' stands twice in one object")
            known[name] = value
        return known

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is no finite number")
        return number

    too_deep = f"{path}: nested deeper than {_DEEPEST} levels; this is not a report of this format"
    try:
        data = json.loads(content, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)
    except RecursionError as error:
        raise BadInput(too_deep) from error
    except ValueError as error:
        cut = isinstance(error, json.JSONDecodeError)
        remedy = "was it cut short? Get the file again" if cut else "this is not a report of this format"
        raise BadInput(f"{path}: not valid JSON ({error}); {remedy}") from error
    if _deeper(data, _DEEPEST):
        raise BadInput(too_deep)
    return data


def _deeper(data: Any, levels: int) -> bool:
    """Whether `data` nests deeper than `levels`; found level by level, so that no depth is too much for it."""
    level = [data]
    for _ in range(levels + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)


def _printable(text: str) -> str:
    """A file's own words for a message: nothing in them moves a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _refuse_newer(path: Path, data: Any) -> None:
    details = data.get("bitmatrix") if isinstance(data, dict) else None
    number = details.get("format") if isinstance(details, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise BadInput(f"{path}: this report is of format {number}; this bitmatrix reads up to {FORMAT}: update it")
