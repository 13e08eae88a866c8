"""What all cells of a run share, and each cell's resume key.

The key names everything that can change a capture: image, environment, activation, candidate, cases and their order,
isolation, threads, code, kernel binary, inputs, device and driver. Equal key, equal experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import environment as environments
from harness import gpu, inputs, library, results, runtime
from harness.capture import Status
from harness.cell.op import Op, load_op
from harness.device import Device
from harness.environment import Environment, StackRecord
from harness.errors import BadInput, BitmatrixError, Unavailable
from harness.files import sha256_json, sha256_tree, sources
from harness.library import Library
from harness.matrix import Matrix
from harness.plan import Cell, IsolationName, Plan
from harness.process import reason_in
from harness.results import Results
from harness.runtime import Runtime
from harness.workspace import Workspace

KEY_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Why a cell can't even be started."""

    status: Status
    reason: str
    log: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A cell that can run: its environment and its resume key, with what went into it."""

    environment: Environment
    library: Library | None
    key: str
    identity: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Inputs, runtime, kernel library, stacks and device of one run."""

    workspace: Workspace
    plan: Plan
    isolation: IsolationName
    op: Op
    op_folder: Path
    inputs: Path
    input_digests: Mapping[str, str | dict[str, str]]
    inputs_pinned: bool
    results: Mapping[str, Results]
    """Candidate -> the digests of its results that the op pins."""
    runtime: Runtime
    device: Device
    stacks: Mapping[str, StackRecord | None]
    library: Library | Blocked | None
    mode_environments: Mapping[str, dict[str, str]]
    """What each mode of the device declares, beside what all cells get."""

    def resolve(self, cell: Cell) -> Ready | Blocked:
        """The cell's key, or why it can't be started."""
        facts = self.device.facts
        if cell.architectures and facts.architecture not in cell.architectures:
            return Blocked(
                status="unavailable",
                reason=f"mode {cell.mode} exists on {', '.join(cell.architectures)}, not on {facts.architecture}",
            )
        least, has = cell.capability, facts.capability
        if least and has and gpu.below(has, least):
            return Blocked(
                status="unavailable",
                reason=f"mode {cell.mode} needs compute capability {least}, {facts.model} has {has}",
            )
        stack = self.stacks.get(cell.stack)
        if stack is None:
            return Blocked(status="not_run", reason=f"stack {cell.stack} was never made here: nox -s matrix")
        if stack.environment is None:
            return Blocked(status=stack.status, reason=f"stack {cell.stack}: {stack.reason}", log=stack.log)
        old = self._driver_lacks(stack.environment)
        if old:
            return Blocked(status="unavailable", reason=f"stack {cell.stack}: {old}")
        kernel = self.library if cell.library else None
        if isinstance(kernel, Blocked):
            return kernel
        identity = self._identity(cell, stack.environment, kernel)
        return Ready(environment=stack.environment, library=kernel, key=sha256_json(identity)[:32], identity=identity)

    def _driver_lacks(self, environment: Environment) -> str | None:
        """Why the driver is too old for a stack. What `host` isolation has isn't what a lock pins: torch will say."""
        cuda = gpu.cuda_of(environment.pinned)
        if self.device.driver is None or self.isolation == "host" or cuda is None:
            return None
        return gpu.driver_lacks(cuda, self.device.driver.version)

    def _identity(self, cell: Cell, environment: Environment, kernel: Library | None) -> dict[str, Any]:
        code = [path for path in sources(self.op_folder) if _matters(path.relative_to(self.op_folder), cell)]
        return {
            "version": KEY_VERSION,
            "stack": environment.identity,
            "isolation": self.isolation,
            "candidate": cell.candidate,
            "mode": cell.mode,
            "environment": cell.environment,
            "activation": cell.activation.model_dump() if cell.activation else None,
            "threads": cell.threads,
            "cases": list(self.plan.cases),
            "cell_sha256": self.runtime.cell_sha256,
            "op_sha256": sha256_tree(code, self.op_folder),
            "library_sha256": kernel.sha256 if kernel else None,
            "inputs": self.input_digests,
            "device": asdict(self.device.facts),
        }


def prepare(workspace: Workspace, matrix: Matrix, plan: Plan, isolation: IsolationName, device: Device) -> Preparation:
    """Make inputs and runtime, and find what `image` and `kernels` left. Raises BadInput when inputs are off."""
    op_folder = workspace.kernels / matrix.op
    op = load(op_folder)
    folder = inputs.make(workspace.out, op, tuple(matrix.cases))
    digests, pinned = inputs.checked(folder, op, plan.cases, op_folder / "inputs.json")
    stacks = {name: environments.recorded(workspace, plan.device, name, isolation) for name in plan.stacks()}
    return Preparation(
        workspace=workspace,
        plan=plan,
        isolation=isolation,
        op=op,
        op_folder=op_folder,
        inputs=folder,
        input_digests=digests,
        inputs_pinned=pinned,
        results=results.pinned(op_folder),
        runtime=runtime.stage(workspace.out, op_folder),
        device=device,
        stacks=stacks,
        library=_library(workspace, matrix, plan, isolation, op_folder),
        mode_environments={name: mode.environment for name, mode in matrix.device(plan.device).modes.items()},
    )


def load(op_folder: Path) -> Op:
    """The op that a folder declares. Raises BadInput when its op.py doesn't load or contradicts itself."""
    try:
        return load_op(op_folder)
    except Exception as error:
        raise BadInput(f"{op_folder / 'op.py'}: {type(error).__name__}: {error}") from error


def _library(
    workspace: Workspace, matrix: Matrix, plan: Plan, isolation: IsolationName, op_folder: Path
) -> Library | Blocked | None:
    """The kernel library that `kernels` compiled, or why there is none."""
    toolchain = matrix.device(plan.device).toolchain
    if toolchain is None or not library.sources(op_folder, plan.device):
        return None
    stack = environments.recorded(workspace, plan.device, toolchain, isolation)
    if stack is None:
        return Blocked(status="not_run", reason="the kernel was never compiled here: nox -s kernels")
    if stack.environment is None:
        return Blocked(status=stack.status, reason=f"the kernel's toolchain: {stack.reason}", log=stack.log)
    try:
        found = library.find(workspace.out, op_folder, plan.device, library.compiler_of(stack.environment, plan.device))
    except Unavailable as error:
        return Blocked(status="unavailable", reason=str(error))
    except BitmatrixError as error:
        return Blocked(status="failed", reason=str(error))
    if found:
        return found
    log = library.log_of(workspace.out, op_folder)
    if log.is_file():
        return Blocked(status="failed", reason=f"compiling the kernel failed: {reason_in(log)}", log=str(log))
    return Blocked(status="not_run", reason="the kernel was never compiled here: nox -s kernels")


def _matters(path: Path, cell: Cell) -> bool:
    """Whether a file of the op's folder can change this cell: other candidates can't, and sources count as a binary."""
    if path.parts[0] == "src" or path.name in ("inputs.json", results.FILE):
        return False
    return path.parts[0] != "candidates" or path.parts[1:] == (f"{cell.candidate}.py",)
