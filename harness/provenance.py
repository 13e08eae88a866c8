"""The provenance of a run, as an in-toto statement (https://in-toto.io/Statement/v1) with SLSA's predicate (v1).

Its subject is the report; its materials are the images, locks, kernels, inputs and the commit that the report came
from; its byproducts every other file of the run. A pure function of the run's folder: the same run, the same bytes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import capture, rundir
from harness.capture import Record
from harness.errors import BitmatrixError
from harness.files import sha256_file, write_text
from harness.rundir import Run

FILE = "provenance.json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"
_BUILD = "urn:bitmatrix:matrix:v1"
_BUILDER = "urn:bitmatrix:harness"


def statement(folder: Path) -> dict[str, Any]:
    """The statement of the run in `folder`. Raises BitmatrixError when one of its files is gone."""
    described = rundir.read(folder)
    records = _records(folder, described)
    started = [record.started for record in records.values()]
    return {
        "_type": _STATEMENT,
        "subject": [{"name": "report.json", "digest": {"sha256": _digest(folder / "report.json")}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD,
                "externalParameters": {
                    "op": described.op,
                    "cases": described.cases,
                    "device": described.device,
                    "isolation": described.isolation,
                    "narrowed": described.narrowed,
                },
                "internalParameters": {"cells": {cell.name: cell.key for cell in described.cells}},
                "resolvedDependencies": [*_materials(folder, described)],
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"bitmatrix": _version()}},
                "metadata": {
                    "invocationId": described.run,
                    "startedOn": min(started, default=described.created),
                    "finishedOn": described.created,
                },
                "byproducts": [*_byproducts(folder, records)],
            },
        },
    }


def _version() -> str:
    """Of the harness; a checkout that was never installed has only its commit, which is among the materials."""
    try:
        return importlib.metadata.version("bitmatrix")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def text(folder: Path) -> str:
    """The statement as the bytes that are written, and that a signature is of."""
    return json.dumps(statement(folder), indent=2, allow_nan=False) + "\n"


def write(folder: Path) -> None:
    """Write the statement beside the report, whole or not at all."""
    write_text(folder / FILE, text(folder))


def _records(folder: Path, described: Run) -> dict[str, Record]:
    """The record of each done cell that has a readable one; the report says what is wrong with another."""
    records = {}
    for cell in described.cells:
        if cell.status == "done":
            with contextlib.suppress(BitmatrixError, OSError):
                records[cell.folder] = capture.read(folder / cell.folder)
    return records


def _materials(folder: Path, described: Run) -> Iterator[dict[str, Any]]:
    if described.commit:
        changed = described.checkout.changed if described.checkout else []
        yield _resource("source", {"gitCommit": described.commit}, dirty=described.dirty, changed=changed)
    if described.checkout:
        yield _resource("harness/cell", {"sha256": described.checkout.cell_sha256})
        yield _resource(f"kernels/{described.op}", {"sha256": described.checkout.op_sha256})
        for name in described.checkout.locks:
            yield _resource(name, {"sha256": _digest(folder / rundir.LOCKS / name)})
    for stack, record in described.stacks.items():
        environment = (record or {}).get("environment") or {}
        if environment.get("image_id"):
            digest = {"sha256": str(environment["image_id"]).removeprefix("sha256:")}
            yield _resource(f"image {environment['image']}", digest, stack=stack, base=environment.get("base"))
        for name, tree in (environment.get("made_from_source") or {}).get("sources", {}).items():
            yield _resource(f"source {name}", {"gitCommit": tree["commit"]}, stack=stack)
    if described.library:
        yield _resource(str(described.library["path"]), {"sha256": described.library["sha256"]})
    yield from _inputs(described)


def _inputs(described: Run) -> Iterator[dict[str, Any]]:
    for name, found in described.inputs.items():
        if isinstance(found, str):
            yield _resource(f"input {name}", {"sha256": found})
        else:
            for case, one in found.items():
                yield _resource(f"input {name} at {case} rows", {"sha256": one})


def _byproducts(folder: Path, records: dict[str, Record]) -> Iterator[dict[str, Any]]:
    for path in files(folder):
        name = path.relative_to(folder).as_posix()
        record = records.get(name.partition("/")[0])
        case = path.name.removeprefix("case-").removesuffix(".safetensors")
        # A capture was hashed when it was taken in: its record has the digest.
        known = record.files[case].sha256 if record and path.suffix == ".safetensors" and case in record.files else None
        yield _resource(name, {"sha256": known or _digest(path)})


def files(folder: Path) -> list[Path]:
    """Every file of a run but the report, this statement and what is signed of it."""
    own = {"report.json", FILE, f"{FILE}.sig"}
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path for path in found if path.relative_to(folder).as_posix() not in own)


def _resource(name: str, digest: dict[str, str], **annotations: Any) -> dict[str, Any]:
    kept = {key: value for key, value in annotations.items() if value is not None}
    return {"name": name, "digest": digest, **({"annotations": kept} if kept else {})}


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise BitmatrixError(f"{path}: is gone, or no regular file")
    return sha256_file(path)
