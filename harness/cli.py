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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from harness import (
    audit,
    base,
    bisect,
    bundle,
    capture,
    changes,
    clean,
    collect,
    device,
    doctor,
    engine,
    figure,
    finding,
    inputs,
    isolation,
    library,
    matrix,
    measure,
    page,
    plan,
    preparation,
    render,
    report,
    resolve,
    results,
    run,
    rundir,
    sbom,
    structure,
    toolkit,
    verify,
)
from harness import environment as environments
from harness.device import Device
from harness.environment import StackRecord
from harness.errors import BadInput, BitmatrixError
from harness.files import sha256_file, write_text
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
    bundled: list[str] | None
    """The stacks of the bundle that the run is from; None without one."""
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
        has_source = bool(library.sources(self.workspace.kernels / self.matrix.op, self.device))
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
    progress = Progress(len(setup.plan.cells))
    return _report(_ran(setup, progress), setup.workspace, progress, strict=options.strict)


def _ran(setup: Setup, progress: Progress) -> Path:
    """Make every stack, run every cell that isn't done; returns the folder of the new run."""
    _can_run(setup)
    progress.say(_describe(setup))
    _sweep(setup, progress)
    return rundir.assemble(_done(setup, progress), setup.matrix)


def _done(setup: Setup, progress: Progress) -> preparation.Preparation:
    for name in setup.needed:
        _stack(setup, name, progress)
    _compile(setup, progress)
    with progress.step("preparing inputs"):
        prepared = _prepared(setup)
    for name in setup.plan.stacks():
        run.cells(prepared, name, fresh=setup.fresh, progress=progress)
    return prepared


def _verify(options: argparse.Namespace) -> int:
    setup = _setup(options, checked=not options.run)
    baseline = report.load(options.baseline)
    verify.check(options.baseline, baseline, setup.plan)
    progress = Progress(len(setup.plan.cells))
    folder = rundir.find(setup.workspace, options.run) if options.run else _ran(setup, progress)
    if not options.run:
        with progress.step("comparing"):
            collect.collect(folder, setup.workspace)
    found = verify.verify(baseline, report.load(folder / "report.json"))
    print(f"{options.baseline} against {folder.name}:")
    for line in found.lines():
        print(line)
    return 0 if found.reaches(options.grade) else 1


def _bisect(options: argparse.Namespace) -> int:
    asked = bisect.question(options.package)
    if len(options.stack) != 1 or options.bundle:
        raise BadInput("name the one --stack that has the package; its releases come from an index, not from a bundle")
    options.no_measures |= not options.measure  # they change no bits, and there are many releases
    setup = _setup(options, checked=True)
    progress = Progress(0)

    def at_release(workspace: Workspace, declared: Matrix, measures: measure.Settings) -> preparation.Preparation:
        planned = replace(setup.plan, measures=measures)
        trial = replace(setup, workspace=workspace, matrix=declared, plan=planned)
        _can_run(trial)
        return _done(trial, Progress(len(planned.cells)))

    search = bisect.Bisection(
        asked,
        setup.workspace,
        setup.matrix,
        setup.device,
        options.stack[0],
        setup.isolation,
        by=options.by,
        measures=setup.plan.measures,
        run=at_release,
        say=progress.say,
    )
    _can_run(setup)
    progress.say(_describe(setup))
    _sweep(setup, progress)
    folder, outcome = search.search()
    for line in (*search.table(), "", *search.conclusion(outcome)):
        print(line)
    print(f"{folder / bisect.FILE}; the run of each release beside it")
    return 0 if outcome.reproduced else 1


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


def _chosen_run(workspace: Workspace, options: argparse.Namespace) -> Path:
    """The run that was named, else the newest."""
    return rundir.find(workspace, str(options.run or workspace.out / "latest"))


def _results(options: argparse.Namespace) -> int:
    """Hold a run's cells against the results that the op pins; or pin those of one candidate."""
    workspace = _workspace(options)
    folder = _chosen_run(workspace, options)
    described = rundir.read(folder)
    op_folder = workspace.kernels / described.op
    if not described.inputs_pinned:
        raise BadInput(f"{folder}: not all of its inputs are pinned: python -m harness inputs --pin")
    done = {cell.candidate: capture.read(folder / cell.folder) for cell in described.cells if cell.status == "done"}
    found = {candidate: results.digests(record.tensors) for candidate, record in done.items()}
    if options.pin:
        if options.pin not in found:
            raise BadInput(f"{folder}: has no done cell of {options.pin} (known: {', '.join(found)})")
        results.pin(op_folder, options.pin, found[options.pin])
    pinned = {name: wanted for name, wanted in results.pinned(op_folder).items() if name in found}
    unlike = {name: results.apart(wanted, found[name]) for name, wanted in pinned.items()}
    for name, places in unlike.items():
        print(f"{name}: {'not as pinned: ' + ', '.join(places) if places else 'as pinned'}")
    if not pinned:
        print(f"{folder}: has no done cell of a candidate with pinned results")
    return 0 if pinned and not any(unlike.values()) else 1


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
    ended = [result for name in names for result in run.cells(prepared, name, fresh=setup.fresh, progress=progress)]
    return 0 if all(status == "done" or not cell.required for cell, status, _ in ended) else 1


def _collect(options: argparse.Namespace) -> int:
    progress = Progress(0)
    if options.run:
        workspace = _workspace(options)
        return _report(rundir.find(workspace, options.run), workspace, progress, strict=options.strict)
    setup = _setup(options)
    folder = rundir.assemble(_prepared(setup), setup.matrix)
    return _report(folder, setup.workspace, progress, strict=options.strict)


def _bundle(options: argparse.Namespace) -> int:
    setup = _setup(options, checked=True)
    if setup.isolation != "docker":
        raise BadInput("a bundle holds images: it is made with --isolation docker")
    progress = Progress(0)
    records = {name: _stack(setup, name, progress) for name in setup.needed}
    whole = {name: one.environment for name, one in records.items() if one.environment and one.environment.lock}
    for name in setup.needed:
        if name not in whole:
            progress.say(
                f"stack {name} is left out: {records[name].reason or 'a published image is named by its registry'}"
            )
    if not whole:
        raise BadInput("no stack could be made here: there is nothing to bundle")
    _compile(setup, progress)
    inputs_folder = _prepared(setup).inputs
    name = f"bitmatrix-{setup.device}-{(rundir.commit() or 'nocommit')[:12]}.tar"
    target = (options.to or setup.workspace.out / "bundles" / name).absolute()
    with progress.step("packing"):
        bundle.pack(
            target,
            setup.workspace,
            setup.matrix,
            setup.device,
            whole,
            inputs=inputs_folder,
            dirty=options.dirty,
            say=progress.say,
        )
    print(f"{target}: {target.stat().st_size / 2**20:.0f} MiB, sha256 {sha256_file(target)}")
    return 0


def _sbom(options: argparse.Namespace) -> int:
    setup = _setup(options)
    names = _known(setup.matrix, setup.device, options.names) or setup.needed
    progress = Progress(0)
    for name in names:
        record = environments.recorded(setup.workspace, setup.device, name, setup.isolation)
        if record is None or record.environment is None:
            reason = record.reason if record else "was never made here: nox -s matrix"
            progress.say(f"stack {name}: {reason}")
            continue
        with progress.step(f"bill of materials of {name}"):
            print(sbom.make(setup.workspace, setup.device, record.environment))
    return 0


def _audit(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    folder = _chosen_run(workspace, options)
    problems = audit.audit(folder, workspace, Progress(0), images=not options.no_images)
    for problem in problems:
        print(f"{folder.name}: {problem}")
    if problems:
        print(f"{folder.name}: doesn't hold, in {len(problems)} place(s)")
        return 1
    described = rundir.read(folder)
    for note in audit.notes(described, workspace):
        print(f"{folder.name}: note: {note}")
    done = sum(cell.status == "done" for cell in described.cells)
    images = "images not looked at" if options.no_images else "every image is there"
    digest = sha256_file(folder / "report.json")
    print(f"{folder.name}: holds: {done} cells, every tensor, record and comparison, the locks; {images}")
    print(f"{folder.name}: report.json is sha256 {digest}, of commit {described.commit or 'unknown'}")
    return 0


def _lock(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    declared = matrix.load(workspace.matrix, workspace.kernels)
    stacks = resolve.chosen(declared, options.device, options.stack)
    if options.check:
        return _check_locks(workspace, declared, stacks)
    chosen, _ = isolation.choose(cast("IsolationName | None", options.isolation))
    progress = Progress(0)
    unresolved = []
    for device_name, name in stacks:
        try:
            with progress.step(f"resolving {name} for {device_name}"):
                # All of a stack's locks resolve before one is written: half of them would fit nothing.
                for made in list(resolve.stack(workspace, declared, device_name, name, chosen)):
                    print("\n  ".join([f"{made.path}: {made.lines[0]}", *made.lines[1:]]), flush=True)
                    if not options.dry_run:
                        made.write()
        except BitmatrixError as error:
            progress.say(f"stack {name} for {device_name} is not resolved: {error}")
            unresolved.append(f"{device_name}/{name}")
    if unresolved:
        progress.say(f"not resolved, and left as they were: {', '.join(unresolved)}")
    return 1 if unresolved else 0


def _check_locks(workspace: Workspace, declared: Matrix, stacks: list[tuple[DeviceName, str]]) -> int:
    """Prove each lock; exit code 2 when a file isn't what it was made as, 1 when it no longer resolves."""
    progress, codes = Progress(0), [0]
    for device_name, name in stacks:
        problems, code = [], 1
        with progress.step(f"checking {name} for {device_name}"):
            try:
                problems = list(resolve.disproved(workspace, declared, device_name, name))
            except BitmatrixError as error:
                problems, code = [str(error)], error.exit_code
        print("\n".join(problems) or f"{device_name}/{name}: its locks satisfy its requirements", flush=True)
        codes.append(code if problems else 0)
    return max(codes)


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


def _compare(options: argparse.Namespace) -> int:
    before, after = report.load(options.before), report.load(options.after)
    print(changes.markdown(before, after, (str(options.before), str(options.after))), end="")
    return 0


def _page(options: argparse.Namespace) -> int:
    write_text(options.to, page.html(report.load(options.file)))
    print(options.to)
    return 0


def _figure(options: argparse.Namespace) -> int:
    for path in figure.draw(report.load(options.file), options.to):
        print(path)
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
    planned = replace(
        plan.make(declared, device_name, selection),
        measures=measure.wanted(
            declared.device(device_name).measures, tuple(options.measure), quick=options.quick, off=options.no_measures
        ),
    )
    chosen, because = isolation.choose(cast("IsolationName | None", options.isolation))
    if checked:
        environments.check_locks(workspace, declared, device_name)
        environments.docker_needed(chosen)
    bundled = None
    if options.bundle:
        bundled = bundle.use(options.bundle, workspace, declared, device_name, Progress(0).say).stacks
    return Setup(
        workspace=workspace,
        matrix=declared,
        device=device_name,
        isolation=chosen,
        chosen_because=because,
        plan=planned,
        fresh=options.fresh,
        bundled=bundled,
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
    if setup.plan.measures:
        lines.append(f"measures after the captures: {', '.join(setup.plan.measures)}")
    width = max(len(cell.name) for cell in setup.plan.cells)
    for cell in setup.plan.cells:
        declared = " ".join(f"{name}={value}" for name, value in _mode_environment(setup, cell.mode).items())
        lines.append(f"  {cell.name:{width}}  stack {cell.stack}  {declared}".rstrip())
    return "\n".join(lines)


def _can_run(setup: Setup) -> None:
    """Raise BadInput, before any work, when locks and matrix disagree or no cell could be given the device."""
    environments.check_locks(setup.workspace, setup.matrix, setup.device)
    if setup.found.gpus and setup.isolation == "docker" and engine.answers():
        toolkit.needed()


def _mode_environment(setup: Setup, mode: str | None) -> dict[str, str]:
    return setup.matrix.device(setup.device).modes[mode].environment if mode else {}


def _sweep(setup: Setup, progress: Progress) -> None:
    if setup.isolation == "docker":
        for name in engine.sweep():
            progress.say(f"removed {name}, left by a run that was killed")


def _stack(setup: Setup, name: str, progress: Progress) -> StackRecord:
    if setup.bundled is not None and name not in setup.bundled:
        where = setup.workspace, setup.device, name, setup.isolation
        return environments.left_out(*where, "isn't in the bundle that this run is from")
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
            return library.build(setup.workspace.out, op_folder, setup.device, record.environment)
    except BitmatrixError as error:
        progress.say(str(error))
        return None


def _prepared(setup: Setup) -> preparation.Preparation:
    return preparation.prepare(setup.workspace, setup.matrix, setup.plan, setup.isolation, setup.found)


def _report(folder: Path, workspace: Workspace, progress: Progress, *, strict: bool) -> int:
    with progress.step("comparing"):
        result = collect.collect(folder, workspace)
    print(result.text, end="")
    for line in result.summary:
        progress.say(line)
    if result.refused:
        return BAD_INPUT
    serious = finding.serious(result.findings) if strict else []
    for found in serious:
        progress.say(f"--strict: {found.severity}: {found.about}: {found.message}")
    return 0 if result.complete and not serious else 1


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
    narrowing.add_argument(
        "--measure", action="append", default=[], choices=measure.NAMES, help="only this measure (repeatable)"
    )
    narrowing.add_argument("--no-measures", action="store_true", help="captures and their comparison alone")
    narrowing.add_argument("--quick", action="store_true", help="the quick check of batch invariance")
    narrowing.add_argument("--bundle", type=Path, metavar="FILE", help="run from a bundle, without any network")
    narrowing.add_argument("--strict", action="store_true", help="fail when what ran isn't what was pinned")
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
    checking = add("results", _results, "hold a run's cells against the results that the op pins", common)
    checking.add_argument("run", nargs="?", metavar="RUN", help="a folder of out/ (default out/latest)")
    checking.add_argument("--pin", metavar="CANDIDATE", help="pin this candidate's results, in the op's folder")
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
    verifying = add("verify", _verify, "run the matrix and hold the result against a baseline", narrowing)
    verifying.add_argument("baseline", type=Path, metavar="BASELINE.json", help="a report")
    verifying.add_argument("--run", metavar="RUN", help="hold an older run against it instead of running")
    verifying.add_argument(
        "--grade", choices=("bits", "verdicts"), default="bits", help="what is to be the same (default bits); else 1"
    )
    bisecting = add("bisect", _bisect, "find the first release of a package that changes the bits", narrowing)
    bisecting.add_argument(
        "--package", required=True, metavar="NAME==A..B", help="a package of the stack and two of its releases"
    )
    bisecting.add_argument(
        "--by", choices=("bits", "verdicts"), default="bits", help="what is to change (default bits)"
    )
    bundling = add(
        "bundle", _bundle, "pack all that a run needs into one file, for a host without a network", narrowing
    )
    bundling.add_argument("--to", type=Path, metavar="FILE", help="where (default out/bundles/)")
    bundling.add_argument("--dirty", action="store_true", help="also of a checkout that differs from its commit")
    add("sbom", _sbom, "write what is installed in each stack, as CycloneDX", narrowing).add_argument(
        "names", nargs="*", metavar="STACK", help="default: all that the plan needs"
    )
    auditing = add("audit", _audit, "verify a run from its files alone: captures, records, report, locks", common)
    auditing.add_argument("run", nargs="?", metavar="RUN", help="a folder of out/ (default out/latest)")
    auditing.add_argument("--no-images", action="store_true", help="leave out whether the engine has the images")
    locking = add("lock", _lock, "resolve the stacks' locks again, show what changes, then write them", narrowing)
    locking.add_argument("--dry-run", action="store_true", help="show what would change; write nothing")
    locking.add_argument(
        "--check", action="store_true", help="prove that the locks still satisfy their requirements; write nothing"
    )
    add("base", _base, "make or pull the bases that this device's stacks start from", common).add_argument(
        "names", nargs="*", metavar="BASE"
    )
    add("show", _show, "print a report as Markdown", common).add_argument("file", type=Path, metavar="REPORT.json")
    compared = add("compare", _compare, "what changed between two reports, the most likely cause first", common)
    compared.add_argument("before", type=Path, metavar="A.json")
    compared.add_argument("after", type=Path, metavar="B.json")
    paged = add("page", _page, "write a report as one HTML file", common)
    paged.add_argument("file", type=Path, metavar="REPORT.json")
    paged.add_argument("to", type=Path, metavar="REPORT.html")
    drawn = add("figure", _figure, "draw a report's heat map, errors and latencies, as SVG and PNG", common)
    drawn.add_argument("file", type=Path, metavar="REPORT.json")
    drawn.add_argument("to", type=Path, metavar="FOLDER")
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
