"""Captures: what one cell leaves, taken in from an untrusted process and kept by resume key.

A capture is a folder with record.json, log.txt and, for a done cell, one safetensors file a case. The host hashes every
tensor once when it takes a capture in: a process's own digests are claims.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import tensors
from harness.cell.op import Op
from harness.errors import BitmatrixError
from harness.files import read_json, sha256_file, write_json
from harness.measure import Measured
from harness.tensors import TensorRef

Status = Literal["done", "unavailable", "failed", "timed_out", "crashed", "not_run"]

_CLAIMS_BYTES = 16 << 20
_DISK_FULL_BYTES = 1 << 20
_EXIT_CODES = {0: "done", 3: "unavailable", 4: "failed"}


class FileStamp(BaseModel):
    """A file as it was when it was hashed: one that still has both needn't be hashed again."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    bytes: int
    modified_ns: int
    sha256: str | None = None
    """Of the whole file, its header too."""

    def is_of(self, path: Path) -> bool:
        """Whether the file still has this size and time."""
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (self.bytes, self.modified_ns)


class TensorFacts(BaseModel):
    """One tensor of a capture, as the host read it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dtype: str
    shape: list[int]
    sha256: str


class Record(BaseModel):
    """record.json: everything that produced a capture. `claims` is what the process said of itself."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[1] = 1
    key: str
    cell: str
    status: Status
    reason: str | None
    started: str
    """UTC, ISO 8601."""
    seconds: float
    exit_code: int | None
    identity: dict[str, Any]
    """What the resume key is a hash of."""
    environment: dict[str, Any]
    """The stack's environment: image, base, lock and its pins."""
    library: dict[str, Any] | None
    tensors: dict[str, dict[str, TensorFacts]]
    """Case -> tensor -> facts, by the host's own reading; empty unless done."""
    files: dict[str, FileStamp]
    """Case -> its tensor file."""
    claims: dict[str, Any]
    measured: Measured = Measured()
    """Which measures were asked for, and what the host itself found of them."""
    gpu: dict[str, Any] | None = None
    """The leased GPU, its driver, and its state before and after the cell, as the host read them; None on a cpu."""


class Claims(BaseModel):
    """claims.json, as far as the host relies on its form."""

    model_config = ConfigDict(extra="allow", strict=True)

    schema_: Literal[1] = Field(alias="schema")
    status: Literal["done", "unavailable", "failed"]
    reason: str | None = None
    facts: dict[str, Any] = {}
    tensors: dict[str, dict[str, TensorFacts]] = {}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a cell ended, by the host's judgement of what the process left."""

    status: Status
    reason: str | None
    tensors: dict[str, dict[str, TensorFacts]]
    claims: dict[str, Any]


def case_file(folder: Path, case: int | str) -> Path:
    """The tensor file of one case."""
    return folder / f"case-{case}.safetensors"


def judge(output: Path, op: Op, cases: tuple[int, ...], exit_code: int | None, *, out_of_memory: bool) -> Verdict:
    """Decide from exit code and output what became of a cell; never raises for what a process wrote."""
    if exit_code is None:
        return Verdict(status="timed_out", reason="stopped: its time was over", tensors={}, claims={})
    if not (output / "claims.json").exists():
        return Verdict(
            status="crashed", reason=_how_it_died(exit_code, output, out_of_memory=out_of_memory), tensors={}, claims={}
        )
    try:
        claims, facts = _checked(output, op, cases, exit_code)
    except BitmatrixError as error:
        reason = f"the capture was refused: {str(error).replace(f'{output}/', '')}"
        return Verdict(status="failed", reason=reason, tensors={}, claims={})
    return Verdict(status=claims.status, reason=claims.reason, tensors=facts, claims=claims.model_dump(by_alias=True))


def _checked(
    output: Path, op: Op, cases: tuple[int, ...], exit_code: int
) -> tuple[Claims, dict[str, dict[str, TensorFacts]]]:
    claims = _claims(output / "claims.json")
    if claims.status != _EXIT_CODES.get(exit_code):
        raise BitmatrixError(f"the process says {claims.status} but ended with exit code {exit_code}")
    facts = take_in(output, op, cases) if claims.status == "done" else {}
    if claims.status == "done" and claims.tensors != facts:
        raise BitmatrixError("the process claims other tensors or digests than its files hold")
    return claims, facts


def take_in(folder: Path, op: Op, cases: tuple[int, ...]) -> dict[str, dict[str, TensorFacts]]:
    """Read and hash every case's tensors. Raises BitmatrixError when one isn't exactly what the op declares."""
    return {str(case): {name: _facts(ref) for name, ref in declared(folder, op, case).items()} for case in cases}


def declared(folder: Path, op: Op, case: int) -> dict[str, TensorRef]:
    """The tensors of one case, by name in the op's order, checked against names, dtypes and shapes of the op."""
    path = case_file(folder, case)
    found = tensors.read_header(path)
    wanted = {tensor.name: tensor for tensor in op.results()}
    if found.keys() != wanted.keys():
        names = ", ".join(sorted(found))[:200]  # as many and as long as a process likes
        raise BitmatrixError(f"{path}: holds {names}, the op declares {', '.join(sorted(wanted))}")
    for name, tensor in wanted.items():
        if (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.at(case)):
            raise BitmatrixError(
                f"{path}: {name} is {found[name].dtype} {list(found[name].shape)}, "
                f"the op declares {tensor.dtype} {list(tensor.at(case))}"
            )
    return {name: found[name] for name in wanted}


def verified(folder: Path, record: Record, op: Op, cases: Iterable[int]) -> dict[int, dict[str, TensorRef]]:
    """A capture's tensors by case and name, held against the op and its record.

    A file with the size and time of its hashing isn't read again; one that was copied or touched is. Raises
    BitmatrixError at the first tensor that isn't the declared or the recorded one.
    """
    refs = {case: declared(folder, op, case) for case in cases}
    for case, tensors_of in refs.items():
        recorded = record.tensors.get(str(case), {})
        known = record.files.get(str(case))
        touched = known is None or not known.is_of(case_file(folder, case))
        for name, ref in tensors_of.items():
            facts = recorded.get(name)
            if facts is None or (facts.dtype, tuple(facts.shape)) != (ref.dtype, ref.shape):
                raise BitmatrixError(f"{ref.path}: {name} is {ref.dtype} {list(ref.shape)}, its record says otherwise")
            if touched and tensors.sha256(ref) != facts.sha256:
                raise BitmatrixError(f"{ref.path}: {name} has another digest than its record says")
    return refs


def stamp(path: Path) -> FileStamp:
    """A file's size, time of change and digest."""
    found = path.stat()
    return FileStamp(bytes=found.st_size, modified_ns=found.st_mtime_ns, sha256=sha256_file(path))


def read(folder: Path) -> Record:
    """The record of a capture. Raises BitmatrixError when it isn't one."""
    path = folder / "record.json"
    try:
        return Record.model_validate(read_json(path))
    except OSError as error:
        raise BitmatrixError(f"{path}: can't be read ({error.strerror}); run the cell again with --fresh") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BitmatrixError(f"{path}: {place}: {first['msg']}; run the cell again with --fresh") from error


def write(folder: Path, record: Record) -> None:
    """Write the record into a capture's folder."""
    write_json(folder / "record.json", record.model_dump())


def keep(folder: Path, place: Path) -> None:
    """Move a finished folder to its place; one that stands there is replaced."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.old.tmp")
        place.rename(aside)
        folder.rename(place)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        folder.rename(place)


def collect_output(output: Path, folder: Path, tensors_of: Mapping[str, Any]) -> None:
    """Move the case files up into the capture's folder and drop whatever else the process left."""
    for case in tensors_of:
        case_file(output, case).rename(case_file(folder, case))
    shutil.rmtree(output, ignore_errors=True)


def _facts(ref: TensorRef) -> TensorFacts:
    return TensorFacts(dtype=ref.dtype, shape=list(ref.shape), sha256=tensors.sha256(ref))


def _claims(path: Path) -> Claims:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BitmatrixError(f"{path}: can't be read ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BitmatrixError(f"{path}: no regular file")
        content = stream.read(_CLAIMS_BYTES + 1)
    if len(content) > _CLAIMS_BYTES:
        raise BitmatrixError(f"{path}: larger than {_CLAIMS_BYTES >> 20} MiB")
    try:
        return Claims.model_validate(json.loads(content, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        raise BitmatrixError(f"{path}: not the claims of a cell ({' '.join(str(error).split())[:200]})") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _how_it_died(exit_code: int, output: Path, *, out_of_memory: bool) -> str:
    if out_of_memory:
        return "killed: it took more memory than limits.memory_gib"
    if shutil.disk_usage(output).free < _DISK_FULL_BYTES:
        return f"ended with exit code {exit_code} without a record: no space left on the disk that holds out/"
    signal_number = exit_code - 128 if exit_code > 128 else -exit_code
    if 0 < signal_number < 65:
        return f"ended by signal {signal_number} without a record"
    return f"ended with exit code {exit_code} without a record"
