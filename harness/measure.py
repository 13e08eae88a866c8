"""What cells measured: which measures a run wants, and results as closed models, read from what a process claims.

`harness.cell.measures` takes them and says what each figure means. A process' result is untrusted: one that isn't of
its model's form becomes a failed measure, and nothing else of the cell is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.matrix import Measures as Declared

NAMES = ("repeatability", "batch_invariance", "accuracy", "latency", "precision")

Settings = dict[str, dict[str, Any]]
"""The settings of each measure that is asked for, by its name."""

Key = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(ge=0)]


class _Own(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Repeatability(_Own):
    """Calls more of each case in the process, and by case and tensor how many of them returned other bits."""

    calls: Count
    differ: dict[Key, dict[Key, Count]]
    complete: bool


class SecondProcess(_Own):
    """The whole cell again in another process: how that ended, and the tensors of each case that had other bits."""

    status: Key
    reason: str | None
    differ: dict[Key, list[Key]]


class Rows(_Own):
    """Rows held against the same row alone or in another batch, and those with other bits."""

    compared: Count
    differ: Count


class Failure(_Own):
    """A row with other bits: in which check, tensor, batch size and place, from which byte on, and four bytes there."""

    check: Key
    tensor: Key
    batch: Count
    row: Count
    byte: Count
    expected: Annotated[str, Field(pattern="^[0-9a-f]{0,16}$")]
    found: Annotated[str, Field(pattern="^[0-9a-f]{0,16}$")]


class BatchInvariance(_Own):
    """Check -> tensor -> rows, and the first failures."""

    quick: bool
    complete: bool
    checks: dict[Key, dict[Key, Rows]]
    first: Annotated[list[Failure], Field(max_length=64)]

    @property
    def compared(self) -> int:
        """Rows compared, in all checks and tensors."""
        return sum(rows.compared for tensors in self.checks.values() for rows in tensors.values())

    @property
    def differ(self) -> int:
        """Of them, those with other bits."""
        return sum(rows.differ for tensors in self.checks.values() for rows in tensors.values())


class Error(_Own):
    """The error of a tensor against FP64; `scale` is the reference's RMS."""

    scale: Positive
    max_abs: Positive
    rms_abs: Positive
    max_ulp: Positive
    median_ulp: Positive
    not_finite: Count


class Accuracy(_Own):
    """Case -> tensor -> its error."""

    cases: dict[Key, dict[Key, Error]]
    complete: bool


class Timing(_Own):
    """Microseconds of one call."""

    median_us: Positive
    min_us: Positive
    max_us: Positive
    repeats: Count


class LatencyCase(_Own):
    """Forward alone, where the candidate can do that, and forward with backward."""

    forward: Timing | None
    whole: Timing


class Latency(_Own):
    """Case -> timings; `load` is the host's load average before and after."""

    clock: Key
    load: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    cases: dict[Key, LatencyCase]
    complete: bool


class Precision(_Own):
    """Case -> path -> significant bits kept; 24 is all of FP32."""

    bits: dict[Key, dict[Key, Annotated[int, Field(ge=0, le=64)]]]
    complete: bool

    @property
    def least(self) -> int | None:
        """The fewest bits that any path keeps."""
        return min((bits for paths in self.bits.values() for bits in paths.values()), default=None)


Result = TypeVar("Result", bound=_Own)


class Taken(_Own, Generic[Result]):
    """One measure of one cell: its result, or why there is none."""

    status: Literal["done", "unavailable", "failed"]
    reason: str | None
    seconds: float | None
    result: Result | None


class Clocks(_Own):
    """A GPU before and after its cell: SM clocks in MHz, and nanoseconds for which power or heat held them down."""

    sm_mhz: list[int | None]
    sm_max_mhz: int | None
    held_down_ns: dict[str, int | None]
    throttle: list[str]


class Measures(_Own):
    """Every measure of one cell; None where it wasn't asked for."""

    repeatability: Taken[Repeatability] | None = None
    second_process: SecondProcess | None = None
    batch_invariance: Taken[BatchInvariance] | None = None
    accuracy: Taken[Accuracy] | None = None
    latency: Taken[Latency] | None = None
    precision: Taken[Precision] | None = None
    clocks: Clocks | None = None


class Measured(_Own):
    """What a record says of its measures beside the process' own claims."""

    asked: Settings = {}
    second: SecondProcess | None = None
    lost: str | None = None
    """Why the process that measured left nothing: the captures are of another, which did nothing else."""
    company: bool = False
    """Whether another cell ran at the same time."""


_MODELS: Mapping[str, type[Taken[Any]]] = {
    "repeatability": Taken[Repeatability],
    "batch_invariance": Taken[BatchInvariance],
    "accuracy": Taken[Accuracy],
    "latency": Taken[Latency],
    "precision": Taken[Precision],
}
COMPANY = "another cell ran at the same time (-j, or another run): the figures would be of both"


def wanted(declared: Declared, only: tuple[str, ...], *, quick: bool, off: bool) -> Settings:
    """The settings of the declared measures, narrowed by the user's options."""
    settings = {} if off else {name: value for name, value in declared.model_dump().items() if value is not None}
    chosen = {name: value for name, value in settings.items() if not only or name in only}
    if quick and "batch_invariance" in chosen:
        chosen["batch_invariance"] = {**chosen["batch_invariance"], "quick": True}
    return chosen


def lacks(measured: Measured, settings: Settings) -> bool:
    """Whether a kept cell lacks a measure that is wanted now; the strict check covers the quick one."""
    return any(not _covers(name, measured.asked.get(name), value) for name, value in settings.items())


def merged(measured: Measured | None, settings: Settings) -> Settings:
    """What is wanted, and what a kept cell had beside it: measuring again must lose nothing."""
    return {**(measured.asked if measured else {}), **settings}


def read(measured: Measured, claims: Mapping[str, Any], gpu: Mapping[str, Any] | None) -> Measures | None:
    """The measures of a cell, from its record; None when none was asked for."""
    if not measured.asked:
        return None
    told = claims.get("measures")
    found = {name: _one(name, measured, told if isinstance(told, dict) else {}) for name in measured.asked}
    return Measures(**found, second_process=measured.second, clocks=_clocks(gpu))


def _covers(name: str, asked: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> bool:
    if asked is None:
        return False
    if name == "batch_invariance":
        return settings["quick"] or not asked["quick"]
    return dict(asked) == dict(settings)


def _one(name: str, measured: Measured, told: Mapping[str, Any]) -> Taken[Any]:
    model = _MODELS[name]
    if measured.lost is not None:
        return model(status="failed", reason=measured.lost, seconds=None, result=None)
    if name == "latency" and measured.company:
        return model(status="unavailable", reason=COMPANY, seconds=None, result=None)
    try:
        taken = model.model_validate(told.get(name))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))[:100] or "the whole"
        reason = f"the process left no result of this measure's form ({place}: {error.errors()[0]['msg']})"
        return model(status="failed", reason=reason, seconds=None, result=None)
    if (taken.status == "done") != (taken.result is not None):
        return model(status="failed", reason="the process left a status without its result", seconds=None, result=None)
    return taken


def _clocks(gpu: Mapping[str, Any] | None) -> Clocks | None:
    if gpu is None:
        return None
    before, after = gpu["before"], gpu["after"]
    held = {
        name: None if None in (start, before["held_down_ns"].get(name)) else start - before["held_down_ns"][name]
        for name, start in after["held_down_ns"].items()
    }
    return Clocks(
        sm_mhz=[before["sm_mhz"], after["sm_mhz"]],
        sm_max_mhz=after["sm_max_mhz"],
        held_down_ns=held,
        throttle=sorted({*(before["throttle"] or []), *(after["throttle"] or [])}),
    )
