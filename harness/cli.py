"""The command line: each command one step of the matrix, and `matrix` all of them.

Exit codes: 0, every required cell is done (or the step succeeded); 1, something isn't, and the output shows what;
2, bad input, nothing was run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from harness import (
    base,
    clean,
    collect,
    device,
    doctor,
    engine,
    inputs,
    isolation,
    library,
    matrix,
    plan,
    preparation,
    render,
    report,
    resolve,
    run,
    rundir,
    structure,
    toolkit,
)
from harness import environment as environments
from harness.device import Device
from harness.environment import StackRecord
from harness.errors import BadInput, BitmatrixError
from harness.files import write_text
from harness.matrix import DeviceName, Matrix
from harness.plan import IsolationName, Plan, Selection
from harness.progress import Progress
from harness.workspace import REPOSITORY, Workspace, default_cache

BAD_INPUT = BadInput.exit_code
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the options resolve to."""

    workspace: Workspace
    matrix: Matrix
    device: DeviceName
    isolation: IsolationName
    chosen_because: str
    plan: Plan
    fresh: bool
    gpus: tuple[str, ...]
    """The GPUs asked for, by index or UUID."""

    @functools.cached_property
    def found(self) -> Device:
        """This host's device, looked at when first asked for: an image can be made where there is no GPU."""
        return device.find(self.device, self.gpus)

    @property
    def needed(self) -> list[str]:
        """The stacks that the plan needs: those of its cells, then the toolchain's."""
        return list(dict.fromkeys([*self.plan.stacks(), *filter(None, [self.toolchain])]))

    @property
    def toolchain(self) -> str | None:
        """The stack that compiles the op's kernel library, if the op has one and a cell of the plan runs it."""
        has_source = library.source_folder(self.workspace.kernels / self.matrix.op) is not None
        wanted = has_source and any(cell.library for cell in self.plan.cells)
        return self.matrix.device(self.device).toolchain if wanted else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Messages go to standard error, results to standard output."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BitmatrixError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what is done is kept, and the next run carries on from there", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"{where}{error.strerror or error}; what is done is kept (--out and --cache choose places)", file=sys.stderr
        )
        return 1


# Steps ---------------------------------------------------------------------------------------------------------------


def _plan(options: argparse.Namespace) -> int:
    setup = _setup(options)
    _can_run(setup)
    print(_describe(setup))
    return 0


def _matrix(options: argparse.Namespace) -> int:
    setup = _setup(options, checked=True)
    _can_run(setup)
    progress = Progress(len(setup.plan.cells))
    progress.say(_describe(setup))
    _sweep(setup, progress)
    for name in setup.needed:
        _stack(setup, name, progress)
    _compile(setup, progress)
    with progress.step("preparing inputs"):
        prepared = _prepared(setup)
    for name in setup.plan.stacks():
        run.cells(prepared, name, fresh=setup.fresh, progress=progress)
    return _report(rundir.assemble(prepared, setup.matrix), setup.workspace, progress)


def _inputs(options: argparse.Namespace) -> int:
    setup = _setup(options)
    op_folder = setup.workspace.kernels / setup.matrix.op
    op = preparation.load(op_folder)
    cases = tuple(setup.matrix.cases)
    with Progress(0).step("making inputs"):
        folder = inputs.make(setup.workspace.out, op, cases)
    pins = op_folder / "inputs.json"
    if options.pin:
        write_text(pins, json.dumps(inputs.digests(folder, op, cases), indent=2) + "\n")
    _, pinned = inputs.checked(folder, op, cases, pins)
    print(f"{folder}: {'equal to the pinned digests' if pinned else 'not all pinned; see --pin'}")
    return 0


def _kernels(options: argparse.Namespace) -> int:
    setup = _setup(options, checked=True)
    progress = Progress(0)
    if setup.toolchain is None:
        print(f"op {setup.matrix.op} has no kernel library that a selected cell runs")
        return 0
    _stack(setup, setup.toolchain, progress)
    built = _compile(setup, progress)
    if built is None:
        return 1
    print(f"{built.path}: sha256 {built.sha256}, {built.compiler}")
    return 0


def _image(options: argparse.Namespace) -> int:
    setup = _setup(options, checked=True)
    progress = Progress(0)
    names = _known(setup.matrix, setup.device, options.names) or setup.needed
    if setup.plan.narrowed:
        names = [name for name in names if name in setup.needed]
    records = [_stack(setup, name, progress) for name in names]
    return 0 if all(record.status == "done" for record in records) else 1


def _run(options: argparse.Namespace) -> int:
    setup = _setup(options)
    _can_run(setup)
    asked = _known(setup.matrix, setup.device, options.names)
    names = [name for name in setup.plan.stacks() if name in asked or not asked]
    progress = Progress(sum(cell.stack in names for cell in setup.plan.cells))
    _sweep(setup, progress)
    prepared = _prepared(setup)
    results = [result for name in names for result in run.cells(prepared, name, fresh=setup.fresh, progress=progress)]
    return 0 if all(status == "done" or not cell.required for cell, status, _ in results) else 1


def _collect(options: argparse.Namespace) -> int:
    progress = Progress(0)
    if options.run:
        workspace = _workspace(options)
        return _report(rundir.find(workspace, options.run), workspace, progress)
    setup = _setup(options)
    return _report(rundir.assemble(_prepared(setup), setup.matrix), setup.workspace, progress)


def _lock(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    declared = matrix.load(workspace.matrix, workspace.kernels)
    stacks = resolve.chosen(declared, options.device, options.stack)
    chosen, _ = isolation.choose(cast("IsolationName | None", options.isolation))
    progress = Progress(0)
    unresolved = []
    for device_name, name in stacks:
        try:
            with progress.step(f"resolving {name} for {device_name}"):
                for made in resolve.stack(workspace, declared, device_name, name, chosen):
                    print("\n  ".join([f"{made.path}: {made.lines[0]}", *made.lines[1:]]), flush=True)
        except BitmatrixError as error:
            progress.say(f"stack {name} for {device_name} is not resolved: {error}")
            unresolved.append(f"{device_name}/{name}")
    if unresolved:
        progress.say(f"not resolved, and left as they were: {', '.join(unresolved)}")
    return 1 if unresolved else 0


def _base(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    loaded = matrix.load(workspace.matrix, workspace.kernels)
    declared = loaded.bases
    for name in options.names or sorted({stack.base for stack in loaded.device(device.default()).stacks.values()}):
        if name not in declared:
            raise BadInput(f"no base {name} is declared (known: {', '.join(declared)})")
        with Progress(0).step(f"making the base {name}"):
            # The log lies in the cache: as root, this must leave nothing in a user's out/.
            made = base.ensure(name, declared[name], cache=workspace.cache, log=workspace.cache / f"base-{name}.log")
        print(f"{made.name}: {made.image_id}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    declared = matrix.load(workspace.matrix, workspace.kernels)
    device_name = cast(DeviceName, options.device or device.default())
    chosen, _ = isolation.choose(cast("IsolationName | None", options.isolation))
    failed = False
    for check in doctor.examine(workspace, declared, device_name, chosen, tuple(options.gpu)):
        print(check.line(), flush=True)
        failed |= check.level == "fail"
    return 1 if failed else 0


def _show(options: argparse.Namespace) -> int:
    print(render.markdown(report.load(options.file)), end="")
    return 0


def _structure(options: argparse.Namespace) -> int:
    found = structure.differences(report.load(options.wanted), report.load(options.found))
    for difference in found:
        print(difference)
    parted = sum(difference.kind != "extra" for difference in found)
    print(f"{options.found}: {parted} part(s) of {options.wanted} missing or unlike, {len(found) - parted} extra")
    return 1 if parted else 0


def _schema(options: argparse.Namespace) -> int:
    text = json.dumps(matrix.Matrix.model_json_schema(), indent=2) + "\n"
    if options.write:
        write_text(options.write, text)
    else:
        print(text, end="")
    return 0


def _clean(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    for line in clean.clean(workspace, keep=options.keep, images=options.images, everything=options.all):
        print(line)
    return 0


# What steps share ----------------------------------------------------------------------------------------------------


def _workspace(options: argparse.Namespace) -> Workspace:
    here = Path.cwd()
    matrix_file = options.matrix or options.root / "matrix.yaml"
    return Workspace(
        # Messages name it as short as it can be typed.
        matrix=matrix_file.relative_to(here) if matrix_file.is_relative_to(here) else matrix_file,
        root=options.root.absolute(),
        out=options.out.absolute(),
        cache=(options.cache or default_cache()).absolute(),
    )


def _setup(options: argparse.Namespace, *, checked: bool = False) -> Setup:
    """Read the matrix and resolve the options; `checked` also holds the locks against it and wants the engine."""
    workspace = _workspace(options)
    declared = matrix.load(workspace.matrix, workspace.kernels)
    device_name = cast(DeviceName, options.device or device.default())
    selection = Selection(stacks=tuple(options.stack), modes=tuple(options.mode), cases=tuple(options.case))
    planned = plan.make(declared, device_name, selection)
    chosen, because = isolation.choose(cast("IsolationName | None", options.isolation))
    if checked:
        environments.check_locks(workspace, declared, device_name)
        environments.docker_needed(chosen)
    return Setup(
        workspace=workspace,
        matrix=declared,
        device=device_name,
        isolation=chosen,
        chosen_because=because,
        plan=planned,
        fresh=options.fresh,
        gpus=tuple(options.gpu),
    )


def _known(declared: Matrix, device_name: DeviceName, names: list[str]) -> list[str]:
    """The names, if the device has stacks of all of them; raises BadInput otherwise."""
    stacks = declared.device(device_name).stacks
    unknown = [name for name in names if name not in stacks]
    if unknown:
        raise BadInput(f"device {device_name} has no stack {', '.join(unknown)} (known: {', '.join(stacks)})")
    return names


def _describe(setup: Setup) -> str:
    """The plan, printed before work starts."""
    where = f"device {setup.device} ({setup.found.facts.model}), isolation {setup.isolation} ({setup.chosen_because})"
    lines = [f"{where}, op {setup.plan.op}, cases {', '.join(map(str, setup.plan.cases))}"]
    lines += [f"  on {gpu.label}" for gpu in setup.found.gpus]
    lines += [f"  left out: {reason}" for reason in setup.found.left_out]
    if setup.plan.narrowed:
        lines.append(f"narrowed by {' '.join(setup.plan.narrowed)}: not comparable with the full order")
    width = max(len(cell.name) for cell in setup.plan.cells)
    for cell in setup.plan.cells:
        declared = " ".join(f"{name}={value}" for name, value in _mode_environment(setup, cell.mode).items())
        lines.append(f"  {cell.name:{width}}  stack {cell.stack}  {declared}".rstrip())
    return "\n".join(lines)


def _can_run(setup: Setup) -> None:
    """Raise BadInput, before any work, when no cell could be given the device that is asked for."""
    if setup.found.gpus and setup.isolation == "docker" and engine.answers():
        toolkit.needed()


def _mode_environment(setup: Setup, mode: str | None) -> dict[str, str]:
    return setup.matrix.device(setup.device).modes[mode].environment if mode else {}


def _sweep(setup: Setup, progress: Progress) -> None:
    if setup.isolation == "docker":
        for name in engine.sweep():
            progress.say(f"removed {name}, left by a run that was killed")


def _stack(setup: Setup, name: str, progress: Progress) -> StackRecord:
    with progress.step(f"stack {name} ({setup.isolation})"):
        record = environments.prepare(setup.workspace, setup.matrix, setup.device, name, setup.isolation)
    if record.status != "done":
        progress.say(f"stack {name}: {record.status}: {record.reason}")
    return record


def _compile(setup: Setup, progress: Progress) -> library.Library | None:
    """Compile the kernel library where its toolchain is there; a failure is the business of the cells that need it."""
    if setup.toolchain is None:
        return None
    record = environments.recorded(setup.workspace, setup.device, setup.toolchain, setup.isolation)
    if record is None or record.environment is None:
        return None
    op_folder = setup.workspace.kernels / setup.matrix.op
    try:
        with progress.step("compiling the kernel library"):
            return library.build(setup.workspace.out, op_folder, record.environment)
    except BitmatrixError as error:
        progress.say(str(error))
        return None


def _prepared(setup: Setup) -> preparation.Preparation:
    return preparation.prepare(setup.workspace, setup.matrix, setup.plan, setup.isolation, setup.found)


def _report(folder: Path, workspace: Workspace, progress: Progress) -> int:
    with progress.step("comparing"):
        result = collect.collect(folder, workspace)
    print(result.text, end="")
    for line in result.summary:
        progress.say(line)
    if result.refused:
        return BAD_INPUT
    return 0 if result.complete else 1


# Options -------------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, default=REPOSITORY, metavar="DIR", help="where kernels/ and images/ are")
    common.add_argument("--matrix", type=Path, metavar="FILE", help="the declared matrix (default matrix.yaml there)")
    common.add_argument("--out", type=Path, default=Workspace.out, metavar="DIR", help="where results go")
    common.add_argument("--cache", type=Path, metavar="DIR", help="where downloads go (default ~/.cache/bitmatrix)")
    narrowing = argparse.ArgumentParser(add_help=False, parents=[common])
    narrowing.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where an NVIDIA driver answers")
    narrowing.add_argument("--isolation", choices=("docker", "venv", "host"), help="default: docker, else venv")
    narrowing.add_argument("--stack", action="append", default=[], metavar="NAME", help="only this stack (repeatable)")
    narrowing.add_argument("--mode", action="append", default=[], metavar="NAME", help="only this mode (repeatable)")
    narrowing.add_argument(
        "--case", action="append", default=[], type=int, metavar="T", help="only this case (repeatable)"
    )
    narrowing.add_argument(
        "--gpu", action="append", default=[], metavar="GPU", help="only this GPU, by index or UUID (repeatable)"
    )
    narrowing.add_argument("--fresh", action="store_true", help="run cells again that are done already")

    parser = argparse.ArgumentParser(
        prog="bitmatrix", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str, parent: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[parent])
        added.set_defaults(command=command)
        return added

    add("matrix", _matrix, "all of it: images, inputs, kernel, every cell, the comparison and its table", narrowing)
    add("doctor", _doctor, "check what this host has and lacks, each with its remedy; changes nothing", narrowing)
    add("plan", _plan, "print which cells would run, where and how", narrowing)
    add("inputs", _inputs, "make the inputs and hold them against the pinned digests", narrowing).add_argument(
        "--pin", action="store_true", help="write the digests into the op's folder"
    )
    add("image", _image, "make the stacks' images (or virtual environments)", narrowing).add_argument(
        "names", nargs="*", metavar="STACK", help="default: all that the plan needs"
    )
    add("kernels", _kernels, "compile the op's kernel library", narrowing)
    add("run", _run, "run the cells of stacks that are made already", narrowing).add_argument(
        "names", nargs="*", metavar="STACK", help="default: all that the plan needs"
    )
    add("collect", _collect, "compare what is there and write the report; runs nothing", narrowing).add_argument(
        "run", nargs="?", metavar="RUN", help="compare an older run again from its own files (a folder of out/)"
    )
    add("lock", _lock, "resolve the stacks' locks again and show what changes", narrowing)
    add("base", _base, "make or pull the bases that this device's stacks start from", common).add_argument(
        "names", nargs="*", metavar="BASE"
    )
    add("show", _show, "print a report as Markdown", common).add_argument("file", type=Path, metavar="REPORT.json")
    structured = add("structure", _structure, "whether a report has another's keys, order and cells", common)
    structured.add_argument("wanted", type=Path, metavar="WANTED.json")
    structured.add_argument("found", type=Path, metavar="FOUND.json")
    add("schema", _schema, "print the JSON Schema of matrix.yaml", common).add_argument(
        "--write", type=Path, metavar="FILE"
    )
    cleaning = add("clean", _clean, "remove old runs and what no run needs", common)
    cleaning.add_argument("--keep", type=int, default=1, metavar="N", help="runs to keep (default 1)")
    cleaning.add_argument("--images", action="store_true", help="also this tool's images and stopped containers")
    cleaning.add_argument("--all", action="store_true", help="everything below out/")
    return parser
