"""The plan: every cell that a run asks for, in the order of the matrix, after the user's narrowing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.errors import BadInput
from harness.matrix import Activation, DeviceName, Limits, Matrix, cell_name

IsolationName = Literal["docker", "venv", "host"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One candidate in one mode: a process of its own."""

    candidate: str
    mode: str | None
    stack: str
    source: str
    required: bool
    library: bool
    environment: dict[str, str]
    """Declared variables of the process: the device's, then the mode's."""
    threads: int
    activation: Activation | None
    architectures: tuple[str, ...] | None
    capability: str | None
    """The least compute capability, where the mode names one."""

    @property
    def name(self) -> str:
        """As in the report: `diffusers[plain]`."""
        return cell_name(self.candidate, self.mode)

    @property
    def folder(self) -> str:
        """As a folder: `diffusers-plain` (brackets would be a pattern to a shell)."""
        return self.candidate if self.mode is None else f"{self.candidate}-{self.mode}"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the user narrowed the matrix; empty means all."""

    stacks: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    cases: tuple[int, ...] = ()

    def options(self) -> list[str]:
        """The narrowing, as it was typed."""
        parts = (("--stack", self.stacks), ("--mode", self.modes), ("--case", self.cases))
        return [f"{option} {value}" for option, values in parts for value in values]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells of a run on one kind of device."""

    op: str
    device: DeviceName
    cases: tuple[int, ...]
    cells: tuple[Cell, ...]
    references: tuple[str, ...]
    limits: Limits
    narrowed: list[str] = field(default_factory=list)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of what each cell measures after its captures; they are no part of a cell's key."""

    def stacks(self) -> list[str]:
        """The stacks that have a cell in this plan, in the order of their first."""
        return list(dict.fromkeys(cell.stack for cell in self.cells))


def make(matrix: Matrix, device_name: DeviceName, selection: Selection) -> Plan:
    """Resolve the matrix for one device. Raises BadInput when the selection names what isn't there."""
    device = matrix.device(device_name)
    _check(selection, matrix, device_name)
    cells = tuple(
        cell
        for cell in _cells(matrix, device_name)
        if (not selection.stacks or cell.stack in selection.stacks)
        and (not selection.modes or (cell.mode in selection.modes))
    )
    if not cells:
        raise BadInput(f"no cell of device {device_name} fits {' '.join(selection.options())}")
    return Plan(
        op=matrix.op,
        device=device_name,
        cases=tuple(case for case in matrix.cases if not selection.cases or case in selection.cases),
        cells=cells,
        references=tuple(device.references),
        limits=device.limits,
        narrowed=selection.options(),
    )


def _cells(matrix: Matrix, device_name: DeviceName) -> list[Cell]:
    device = matrix.device(device_name)
    cells = []
    for name, candidate in device.candidates.items():
        modes: list[str | None] = [*candidate.modes] if candidate.modes else [None]
        for mode_name in modes:
            mode = device.modes[mode_name] if mode_name else None
            stack = mode.stack if mode else candidate.stack
            assert stack is not None
            cells.append(
                Cell(
                    candidate=name,
                    mode=mode_name,
                    stack=stack,
                    source=f"{candidate.source} [{mode_name}]" if mode_name else candidate.source,
                    required=candidate.required,
                    library=candidate.library,
                    environment={**device.environment, **(mode.environment if mode else {})},
                    threads=(mode.threads if mode else None) or device.threads,
                    activation=mode.activation if mode else None,
                    architectures=tuple(mode.architectures) if mode and mode.architectures else None,
                    capability=mode.capability if mode else None,
                )
            )
    return cells


def _check(selection: Selection, matrix: Matrix, device_name: DeviceName) -> None:
    device = matrix.device(device_name)
    parts: list[tuple[str, tuple[str | int, ...], list[str | int]]] = [
        ("--stack", selection.stacks, list(device.stacks)),
        ("--mode", selection.modes, list(device.modes)),
        ("--case", selection.cases, list(matrix.cases)),
    ]
    problems = [
        f"{option} {value}: the matrix has no such {option[2:]} for {device_name} (known: {', '.join(map(str, known))})"
        for option, values, known in parts
        for value in values
        if value not in known
    ]
    if problems:
        raise BadInput("\n".join(problems))
