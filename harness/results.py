"""Pinned results: the digests of what a candidate returns for the pinned inputs on any device, committed beside the op.

Only a candidate whose every operation rounds alike everywhere can be pinned. One that then returns other bits ran on a
broken host, with a broken compiler, or is broken itself: its cell fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, RootModel, ValidationError

from harness.capture import TensorFacts
from harness.errors import BadInput, BitmatrixError
from harness.files import read_json, write_json

FILE = "results.json"

Results = dict[str, dict[str, str]]
"""Case -> tensor -> SHA-256."""


class _Pins(RootModel[dict[str, Results]]):
    model_config = ConfigDict(strict=True)


def pinned(op_folder: Path) -> dict[str, Results]:
    """Candidate -> its pinned results; empty where the op pins none. Raises BadInput when the file isn't such."""
    path = op_folder / FILE
    if not path.is_file():
        return {}
    try:
        return _Pins.model_validate(read_json(path)).root
    except BitmatrixError as error:
        raise BadInput(str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: {place}: {first['msg']}; write it again: python -m harness results --pin") from error


def digests(tensors: Mapping[str, Mapping[str, TensorFacts]]) -> Results:
    """A record's tensors as they are pinned."""
    return {case: {name: facts.sha256 for name, facts in of.items()} for case, of in tensors.items()}


def apart(wanted: Results, found: Results) -> list[str]:
    """Where results aren't the pinned ones, as `T=4 out`; a case that isn't pinned, or wasn't run, isn't compared."""
    return [
        f"T={case} {name.replace('grads.', 'd ')}"
        for case in wanted
        if case in found
        for name in wanted[case]
        if found[case].get(name) != wanted[case][name]
    ]


def pin(op_folder: Path, candidate: str, found: Results) -> None:
    """Write a candidate's results into the op's folder, those of other candidates untouched."""
    write_json(op_folder / FILE, {**pinned(op_folder), candidate: found})
