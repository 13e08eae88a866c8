"""The job: what the host asks of one cell, read from the JSON file that it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

SCHEMA = 1

Digests = Mapping[str, "str | Mapping[str, str]"]
"""SHA-256 by input name; of a tensor with rows, by case (as text)."""


class BadJob(Exception):
    """The job can't be read: the host and this process disagree about its form."""


@dataclass(frozen=True, kw_only=True)
class Activation:
    """The call that switches a mode on: `function` is "package.module:name", as the releases `versions` have it.

    `elsewhere` names where other releases keep it, with their versions. Versions serve the message alone.
    """

    function: str
    versions: str | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Where the inputs' .npy files are, and the digests they must have."""

    folder: Path
    digests: Digests


@dataclass(frozen=True, kw_only=True)
class Library:
    """The op's compiled kernel library and the SHA-256 it must have."""

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell's work: `cases` in the order they run, everything it must find before it starts."""

    cell: str
    candidate: str
    mode: str | None
    device: str
    op_folder: Path
    cases: tuple[int, ...]
    threads: int
    activation: Activation | None
    environment: Mapping[str, str]
    inputs: Inputs
    library: Library | None
    output: Path
    lifeline: bool = False
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by the measure's name; in this order they run, after every case is captured."""
    measure_seconds: int = 600
    """What one measure may take before it stops with what it has."""


_TYPES: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "cell": (str,),
    "candidate": (str,),
    "mode": (str, NoneType),
    "device": (str,),
    "op_folder": (str,),
    "cases": (list,),
    "threads": (int,),
    "activation": (dict, NoneType),
    "environment": (dict,),
    "inputs": (dict,),
    "library": (dict, NoneType),
    "output": (str,),
    "lifeline": (bool,),
    "measures": (dict,),
    "measure_seconds": (int,),
}
_OPTIONAL = frozenset({"lifeline", "measures", "measure_seconds"})


def read(path: Path) -> Job:
    """The job in the file `path`.

    Raises:
        BadJob: the file is absent, no JSON, of another schema, or a key is missing, unknown or of a wrong type.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _job(data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadJob(f"{path}: {type(error).__name__}: {error}") from error


def _job(data: Any) -> Job:
    _check(data)
    activation, library = data["activation"], data["library"]
    return Job(
        cell=data["cell"],
        candidate=data["candidate"],
        mode=data["mode"],
        device=data["device"],
        op_folder=Path(data["op_folder"]),
        cases=tuple(data["cases"]),
        threads=data["threads"],
        activation=None if activation is None else Activation(**activation),
        environment=data["environment"],
        inputs=Inputs(folder=Path(data["inputs"]["folder"]), digests=data["inputs"]["digests"]),
        library=None if library is None else Library(path=Path(library["path"]), sha256=library["sha256"]),
        output=Path(data["output"]),
        lifeline=data.get("lifeline", False),
        measures=data.get("measures", {}),
        measure_seconds=data.get("measure_seconds", 600),
    )


def _check(data: Any) -> None:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"a job is a JSON object with schema {SCHEMA}")
    for kind, names in (
        ("lacks", _TYPES.keys() - data.keys() - _OPTIONAL),
        ("doesn't know", data.keys() - _TYPES.keys()),
    ):
        if names:
            raise ValueError(f"the job {kind} {', '.join(sorted(names))}")
    for name, value in data.items():
        if type(value) not in _TYPES[name]:
            raise ValueError(f"{name} can't be {value!r}")
    if data["device"] not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, not {data['device']!r}")
    if not data["cases"] or not all(type(case) is int and case > 0 for case in data["cases"]):
        raise ValueError(f"cases must be positive whole numbers, not {data['cases']!r}")
