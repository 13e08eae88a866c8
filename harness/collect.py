"""The collector: compares a run's captures bit for bit. A pure function of the run's folder; needs no engine.

Equal digests settle a pair without reading it. What two differing tensors gave is remembered by their digests.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import capture, finding, measure, page, provenance, render, report, results, rundir, verdict
from harness.capture import Record
from harness.cell.op import Op
from harness.compare import Comparison, compare, identical
from harness.detail import explain
from harness.errors import BitmatrixError
from harness.files import locked, read_json, write_json, write_text
from harness.preparation import load
from harness.report import (
    Case,
    CellDetails,
    CellResult,
    Details,
    Environment,
    Finding,
    PairDetail,
    Report,
    StackDetails,
)
from harness.rundir import Run, RunCell
from harness.tensors import TensorRef
from harness.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One cell of the run as the collector judged it: its record and tensors when they hold, else why not."""

    cell: RunCell
    status: capture.Status
    reason: str | None
    record: Record | None
    tensors: dict[int, dict[str, TensorRef]]


def gather(folder: Path, described: Run, op: Op) -> list[Collected]:
    """Each cell with its checked capture. A capture that doesn't hold makes its cell failed, and the others stay."""
    collected = []
    for cell in described.cells:
        record: Record | None = None
        refs: dict[int, dict[str, TensorRef]] = {}
        status, reason = cell.status, cell.reason
        if status == "done":
            try:
                record, refs = _checked(folder / cell.folder, described, cell, op)
            except (BitmatrixError, OSError) as error:
                status, reason = "failed", f"the capture was refused: {str(error).replace(f'{folder}/', '')}"
        collected.append(Collected(cell=cell, status=status, reason=reason, record=record, tensors=refs))
    return collected


def _checked(folder: Path, described: Run, cell: RunCell, op: Op) -> tuple[Record, dict[int, dict[str, TensorRef]]]:
    record = capture.read(folder)
    if (record.key, record.cell, record.status) != (cell.key, cell.name, "done"):
        raise BitmatrixError(f"{folder}/record.json is of {record.cell} ({record.status}), key {record.key}")
    for part, wanted in (("inputs", described.inputs), ("device", described.device), ("cases", described.cases)):
        if record.identity.get(part) != wanted:
            raise BitmatrixError(
                f"{folder}/record.json: its {part} are not this run's; it can't stand in one table with it"
            )
    return record, capture.verified(folder, record, op, described.cases)


class Comparisons:
    """Comparisons of tensors by the digests of their bytes; remembered between runs."""

    def __init__(self, path: Path | None) -> None:
        """Those of a file; without one nothing is remembered."""
        self._path = path
        self._known: dict[str, dict[str, Any]] = read_json(path) if path and path.is_file() else {}
        self._new: dict[str, dict[str, Any]] = {}

    def of(self, a: TensorRef, digest_a: str, b: TensorRef, digest_b: str) -> Comparison:
        """Compare two tensors of equal shape and dtype; the order of the two doesn't matter."""
        key = _pair_key(a, digest_a, digest_b)
        if key not in self._known:
            found = identical(a) if digest_a == digest_b else compare(a, b)
            self._known[key] = self._new[key] = asdict(found)
        return Comparison(**self._known[key])

    def detail(self, a: TensorRef, digest_a: str, b: TensorRef, digest_b: str) -> PairDetail | None:
        """How two tensors of equal shape and dtype differ, ours first; None when they don't."""
        if digest_a == digest_b:
            return None
        key = f"detail:{_pair_key(a, digest_a, digest_b)}"
        if key not in self._known:
            first, second = (a, b) if digest_a < digest_b else (b, a)
            found = explain(first, second)
            assert found is not None  # their digests differ
            self._known[key] = self._new[key] = PairDetail.of(found).model_dump()
        known = PairDetail.model_validate(self._known[key])
        return known if digest_a < digest_b else known.swapped()

    def save(self) -> None:
        """Add what was found to the file."""
        if self._new and self._path:
            with locked(self._path.with_suffix(".lock")):
                known = read_json(self._path) if self._path.is_file() else {}
                write_json(self._path, {**known, **self._new})


def _pair_key(ref: TensorRef, digest_a: str, digest_b: str) -> str:
    return ":".join([ref.dtype, "x".join(map(str, ref.shape)), *sorted((digest_a, digest_b))])


@dataclass(frozen=True, kw_only=True)
class Result:
    """A collected run: its report as Markdown, whether every required cell is done, and lines that sum it up."""

    text: str
    complete: bool
    refused: bool
    """Whether a capture that was taken in isn't what its record says, or isn't this run's."""
    summary: list[str]
    findings: list[Finding | str]


def collect(folder: Path, workspace: Workspace) -> Result:
    """Compare a run's captures and write report.json, .md and .html into its folder; `out/latest` points at it."""
    described = rundir.read(folder)
    op = load(workspace.kernels / described.op)
    cells = gather(folder, described, op)
    comparisons = Comparisons(workspace.out / "comparisons.json")
    try:
        built = build(described, op, cells, comparisons)
    finally:
        comparisons.save()
    report.write(folder / "report.json", built)
    text = render.markdown(built)
    write_text(folder / "report.md", text)
    write_text(folder / "report.html", page.html(built))
    provenance.write(folder)
    rundir.point_latest(workspace, folder)
    missing = [cell for cell in cells if cell.status != "done"]
    done = f"{len(cells) - len(missing)} of {len(cells)} cells done"
    summary = [f"{cell.cell.name}: {cell.status.replace('_', ' ')}: {cell.reason}" for cell in missing]
    return Result(
        text=text,
        complete=not any(cell.cell.required for cell in missing),
        refused=any(cell.cell.status == "done" for cell in missing),
        findings=built.bitmatrix.findings if built.bitmatrix else [],
        summary=[*summary, f"{done}; {folder / 'report.md'}, report.html and report.json beside it"],
    )


def build(described: Run, op: Op, cells: list[Collected], comparisons: Comparisons) -> Report:
    """The report of a run, from its checked captures."""
    by_name = {cell.cell.name: cell for cell in cells}
    references = [name for name in described.references if name in by_name]
    compared = {
        cell.cell.name: _result(cell, [by_name[name] for name in references], op, comparisons)
        for cell in sorted(cells, key=lambda cell: cell.cell.name)
        if cell.record
    }
    built = Report(
        kind=described.kind,
        rfc=described.rfc,
        op=described.op,
        rl_kernel_commit=described.kernel_commit,
        tracked_tree_dirty=described.kernel_dirty,
        environment=_environment(described, cells),
        cases=described.cases,
        results=compared,
        bitmatrix=_details(described, op, cells, comparisons),
    )
    assert built.bitmatrix is not None
    built.bitmatrix.verdicts = verdict.every(built)
    return built


def _result(cell: Collected, references: list[Collected], op: Op, comparisons: Comparisons) -> CellResult:
    sections = {
        f"{report.VERSUS}{reference.cell.name}": {
            str(case): _case(cell, reference, case, op, comparisons) for case in sorted(cell.tensors, key=str)
        }
        for reference in sorted(references, key=lambda reference: reference.cell.name)
        if reference.record and reference is not cell
    }
    return CellResult(source=cell.cell.source, **sections)


def _case(cell: Collected, reference: Collected, case: int, op: Op, comparisons: Comparisons) -> Case:
    assert cell.record is not None
    assert reference.record is not None
    ours, theirs = cell.record.tensors[str(case)], reference.record.tensors[str(case)]

    def compared(name: str) -> report.Comparison:
        found = comparisons.of(
            cell.tensors[case][name], ours[name].sha256, reference.tensors[case][name], theirs[name].sha256
        )
        return report.Comparison(equal=found.equal, differ=found.differ, numel=found.numel, max_abs=found.max_abs)

    return Case(
        out=[compared(tensor.name) for tensor in op.outputs],
        grads={name: compared(f"grads.{name}") for name in op.gradients},
    )


# Environments --------------------------------------------------------------------------------------------------------


def _facts(cells: list[Collected], stack: str) -> dict[str, Any]:
    """What the processes of a stack said of it: its first done cell's facts, else none."""
    for cell in cells:
        if cell.record and cell.cell.stack == stack:
            return cell.record.claims["facts"]  # type: ignore[no-any-return]
    return {}


def _text(facts: dict[str, Any], *path: str) -> str | None:
    """A text among facts; None when it isn't there or isn't text: a process' facts are claims."""
    value: Any = facts
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _environment(described: Run, cells: list[Collected]) -> Environment:
    first = next((cell for cell in cells if cell.cell.name == described.references[0]), None)
    facts = _facts(cells, first.cell.stack) if first else {}
    record = first.record if first else None
    flags = record.claims.get("precision", {}).get("in_force") if record else None
    tf32 = flags.get("cuda.matmul.allow_tf32") if isinstance(flags, dict) else None
    capability = facts.get("gpu", {}).get("capability") if isinstance(facts.get("gpu"), dict) else None
    whole = isinstance(capability, list) and all(isinstance(part, int) for part in capability)
    return Environment(
        gpu=_text(facts, "gpu", "name"),
        capability=capability if whole else None,
        torch=_text(facts, "torch", "version"),
        cuda=_text(facts, "torch", "cuda"),
        python=_text(facts, "python", "version"),
        tf32=tf32 if isinstance(tf32, bool) else None,
        libraries={
            library: _library(described, cells, library, stack) for library, stack in described.libraries.items()
        },
        mode_environment=described.mode_environment,
    )


def _library(described: Run, cells: list[Collected], library: str, stack: str) -> str | None:
    """A library's version in the stack that owns it: as installed where a cell ran, else as pinned."""
    name = library.lower().replace("_", "-")
    installed = _text(_facts(cells, stack), "distributions", name)
    record = described.stacks.get(stack)
    pinned = _text(record or {}, "environment", "pinned", name)
    return installed or pinned


def _stack(described: Run, cells: list[Collected], name: str) -> StackDetails:
    record = described.stacks.get(name) or {"status": "not_run", "reason": None, "environment": None}
    environment = record.get("environment") or {}
    facts = _facts(cells, name)
    distributions = facts.get("distributions")
    return StackDetails(
        status=record["status"],
        reason=record["reason"],
        base=environment.get("base"),
        image=environment.get("image"),
        image_id=environment.get("image_id"),
        lock=environment.get("lock"),
        lock_sha256=environment.get("lock_sha256"),
        python=_text(facts, "python", "version"),
        torch=_text(facts, "torch", "version"),
        cuda=_text(facts, "torch", "cuda"),
        cpu=_text(facts, "cpu", "model"),
        gpu=_text(facts, "gpu", "name"),
        driver=described.device.get("driver"),
        distributions={name: version for name, version in distributions.items() if isinstance(version, str)}
        if isinstance(distributions, dict)
        else environment.get("pinned") or {},
    )


# Details -------------------------------------------------------------------------------------------------------------


def _details(described: Run, op: Op, cells: list[Collected], comparisons: Comparisons) -> Details:
    digests = {cell.cell.name: results.digests(cell.record.tensors) for cell in cells if cell.record}
    return Details(
        run=described.run,
        created=described.created,
        device=described.device["kind"] or "",
        device_model=described.device["model"] or "",
        isolation=described.isolation,
        narrowed=described.narrowed,
        outputs=[tensor.name for tensor in op.outputs],
        gradients=list(op.gradients),
        references=described.references,
        cells={cell.cell.name: _cell_details(cell, cells, digests) for cell in cells},
        stacks={name: _stack(described, cells, name) for name in described.stacks},
        classes=report.classes(digests),
        digests=digests,
        inputs=described.inputs,
        inputs_pinned=described.inputs_pinned,
        library=described.library,
        findings=[*finding.of(described, {cell.cell.name: cell.record for cell in cells if cell.record})],
        commit=described.commit,
        dirty=described.dirty,
        pairs={cell.cell.name: _pairs(described, cell, cells, comparisons) for cell in cells if cell.record},
        measures={
            cell.cell.name: found
            for cell in cells
            if cell.record and (found := measure.read(cell.record.measured, cell.record.claims, cell.record.gpu))
        },
    )


def _pairs(
    described: Run, cell: Collected, cells: list[Collected], comparisons: Comparisons
) -> dict[str, dict[str, dict[str, PairDetail]]]:
    """Reference -> case -> tensor -> how the cell differs there; what is equal is left out."""
    references = [one for one in cells if one.cell.name in described.references and one.record and one is not cell]
    found: dict[str, dict[str, dict[str, PairDetail]]] = {}
    assert cell.record is not None
    for reference in references:
        assert reference.record is not None
        for case, refs in cell.tensors.items():
            ours, theirs = cell.record.tensors[str(case)], reference.record.tensors[str(case)]
            for name, ref in refs.items():
                other = reference.tensors[case][name]
                detail = comparisons.detail(ref, ours[name].sha256, other, theirs[name].sha256)
                if detail:
                    found.setdefault(reference.cell.name, {}).setdefault(str(case), {})[name] = detail
    return found


def _cell_details(
    cell: Collected, cells: list[Collected], digests: dict[str, dict[str, dict[str, str]]]
) -> CellDetails:
    overrides = cell.record.claims.get("overrides", []) if cell.record else []
    return CellDetails(
        status=cell.status,
        reason=cell.reason,
        log=cell.cell.log,
        candidate=cell.cell.candidate,
        mode=cell.cell.mode,
        stack=cell.cell.stack,
        required=cell.cell.required,
        seconds=cell.record.seconds if cell.record else None,
        key=cell.cell.key,
        overrides=[f"{item['operator']} ({item['key']})" for item in overrides if _is_override(item)],
        inert=_inert(cell),
        note=_note(cell, cells, digests),
    )


def _inert(cell: Collected) -> bool:
    """Whether the activation ran and changed nothing: no operator, function or flag of torch's, no variable.

    Without torch nothing is seen, and nothing is said.
    """
    claims = cell.record.claims if cell.record else {}
    activation = claims.get("activation")
    if not isinstance(activation, dict) or activation.get("seen") is not True:
        return False
    traces = (activation.get("environment"), activation.get("flags"), claims.get("overrides"), claims.get("patches"))
    return not any(traces)


def _is_override(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("operator"), str) and isinstance(item.get("key"), str)


def _note(cell: Collected, cells: list[Collected], digests: dict[str, dict[str, dict[str, str]]]) -> str | None:
    """Whether a mode that declares something changed nothing: the dispatch table can't show an environment's effect."""
    if _inert(cell):
        rest = "; only its declared environment could have acted" if cell.cell.environment else ""
        return f"inert: its activation replaced no operator and set nothing{rest}"
    if not cell.record or not (cell.cell.environment or cell.cell.activated):
        return None
    for other in cells:
        plain = not other.cell.environment and not other.cell.activated
        same = other.cell.candidate == cell.cell.candidate and other.cell.stack == cell.cell.stack
        if plain and same and other.record and digests[other.cell.name] == digests[cell.cell.name]:
            return f"no effect seen: equal to {other.cell.name} in every bit"
    return None
