"""A matrix that loads is consistent; one that doesn't says every problem at its line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import matrix
from harness.document import read
from harness.errors import BadInput
from harness.workspace import REPOSITORY

MatrixFile = Callable[..., Path]


def problems(path: Path, kernels: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        matrix.load(path, kernels)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_the_committed_matrix_loads(kernels: Path) -> None:
    loaded = matrix.load(REPOSITORY / "matrix.yaml", kernels)
    cuda = loaded.device("cuda")
    assert list(cuda.modes) == [
        "plain",
        "vllm",
        "sglang",
        "sglang_ieee",
        "megatron_te_native",
        "megatron_triton",
        "megatron_triton_ieee",
    ]


def test_the_committed_schema_is_the_models_and_accepts_the_committed_matrix() -> None:
    schema = json.loads((REPOSITORY / "docs" / "matrix.schema.json").read_text())
    assert schema == matrix.Matrix.model_json_schema(), "make it again: nox -s schema"
    jsonschema.validate(yaml.safe_load((REPOSITORY / "matrix.yaml").read_text()), schema)


MISSPELT = [
    ("format: 1\n", "format: 1\nofp: x\n", "ofp: unknown key (did you mean `op`?)"),
    ("  kind: h3", "  knid: h3", "report.knid: unknown key (did you mean `kind`?)"),
    ('    python: "3.11"', '    pyhton: "3.11"', "bases.debian12.pyhton: unknown key (did you mean `python`?)"),
    ("      suite: b", "      siute: b", "bases.debian12.debootstrap.siute: unknown key (did you mean `suite`?)"),
    ("  cpu:\n", "  cpuu:\n", "devices.cpuu: unknown key (did you mean `cpu`?)"),
    ("    threads: 2\n", "    thread: 2\n", "devices.cpu.thread: unknown key (did you mean `threads`?)"),
    (
        "requirements:",
        "requirement:",
        "devices.cpu.stacks.torch.requirement: unknown key (did you mean `requirements`?)",
    ),
    ("threads: 1,", "treads: 1,", "devices.cpu.modes.one_thread.treads: unknown key (did you mean `threads`?)"),
    (
        "source: the real one",
        "sourse: x",
        "devices.cpu.candidates.diffusers.sourse: unknown key (did you mean `source`?)",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), MISSPELT)
def test_a_misspelt_key_is_named_at_every_level(
    matrix_file: MatrixFile, kernels: Path, old: str, new: str, message: str
) -> None:
    path = matrix_file((old, new))
    line = path.read_text()[: path.read_text().index(new.strip().split("\n")[-1])].count("\n") + 1
    assert f"{path}:{line}: {message}" in problems(path, kernels)


REFUSED = [
    ('python: "3.11"', "python: 3.11", 'bases.debian12.python: must be text: write "3.11", in quotes'),
    ('"numpy==2.4.6"', "0.10", 'requirements[0]: must be text: write "0.10", in quotes'),
    ('OMP_NUM_THREADS: "2"', "OMP_DYNAMIC: on", 'OMP_DYNAMIC: must be text: write "on", in quotes'),
    ('OMP_NUM_THREADS: "2"', "CUBLAS: 16:8", 'CUBLAS: must be text: write "16:8", in quotes'),
    ('OMP_NUM_THREADS: "2"', "A: true", 'A: must be text: write "true", in quotes'),
    ('OMP_NUM_THREADS: "2"', 'A: "two\\nlines"', "A: must be one line of text without control characters"),
    ('OMP_NUM_THREADS: "2"', '"A=B": "1"', "environment.A=B: the key must match"),
    (
        "plain: {stack: torch}",
        "plain: {stack: trch}",
        "modes.plain.stack: there is no stack `trch` (did you mean `torch`?)",
    ),
    ("base: debian12", "base: debian11", "there is no base `debian11` (did you mean `debian12`?)"),
    ("golden]", "golde]", "references[1]: there is no cell `golde` (did you mean `golden`?)"),
    ('"diffusers[plain]"', '"diffusers"', "references[0]: there is no cell `diffusers`"),
    ("[1, 4]", "[0, 4]", "cases[0]: must be greater than or equal to 1, not 0"),
    ("[1, 4]", "[-1, 4]", "cases[0]: must be greater than or equal to 1, not -1"),
    ("[1, 4]", '["4"]', "cases[0]: must be a whole number without quotes, not '4'"),
    ("[1, 4]", "[1000000]", "cases[0]: must be less than or equal to 65536, not 1000000"),
    ("[1, 4]", "[010]", "cases[0]: `010` is no plain value here"),
    ("[1, 4]", "[true]", "cases[0]: must be a valid integer"),
    ("[1, 4]", "[4, 4]", "cases[1]: the case `4` stands 2 times; keep one"),
    ("[1, 4]", "[]", "cases: must"),
    ("[plain, one_thread]", "[plain, plain]", "modes[1]: the cell `diffusers[plain]` stands 2 times; keep one"),
    ("      golden: {source", "      diffusers: {source", "candidates.diffusers: this key stands twice"),
    (
        "      golden: {source",
        "      ../../etc: {source",
        "candidates.../../etc: the key must be a name of small letters",
    ),
    ("      golden: {source", "      Golden: {source", "candidates.Golden: the key must be a name of small letters"),
    ("      golden: {source", "      gold: {source", "kernels/timestep_mlp/candidates/gold.py does not exist"),
    ("op: timestep_mlp", "op: timestep", "op: kernels/ has no op `timestep` (did you mean `timestep_mlp`?)"),
    (", stack: golden}", "}", "candidates.golden: must have exactly one of `modes` and `stack`"),
    ('["torch==2.13.0+cpu"]', '["torch=2"]', "requirements[0]: 'torch=2' is no requirement in pip's notation"),
    ('["torch==2.13.0+cpu"]', '["torch @ https://x/y.whl"]', "names an address"),
    ("    debootstrap:\n", "    image: debian:12\n    debootstrap:\n", "image: must be an image by digest"),
    ("python3-venv]", "python3-dev]", "packages: must hold python3-venv too"),
    ("libraries: {torch: torch}", "libraries: {torch: trch}", "libraries.torch: no device has a stack `trch`"),
    ("format: 1", "format: 2", "format: must be 1, not 2"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_bad_input_is_refused_in_words(
    matrix_file: MatrixFile, kernels: Path, old: str, new: str, message: str
) -> None:
    assert any(message in line for line in problems(matrix_file((old, new)), kernels)), problems(
        matrix_file((old, new)), kernels
    )


def test_all_problems_are_reported_at_once_in_the_documents_order(matrix_file: MatrixFile, kernels: Path) -> None:
    path = matrix_file(("[1, 4]", "[0]"), ("base: debian12", "base: nowhere"), ("threads: 1,", "treads: 1,"))
    found = problems(path, kernels)
    lines = [int(line.removeprefix(f"{path}:").split(":")[0]) for line in found]
    assert len(found) == 3
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "a: &a [*a]",
        "[1, 2]",
        "a: b\n\tc: d",
        "\x00",
        "a: !!python/object:os.system x",
        "? [x]\n: y",
        "&a a: *b",
    ],
)
def test_what_is_no_matrix_is_refused_without_a_traceback(tmp_path: Path, kernels: Path, text: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    assert all(line.startswith(f"{path}:") for line in problems(path, kernels))


def test_aliases_cannot_multiply_without_end(tmp_path: Path, kernels: Path) -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "matrix.yaml"
    path.write_text("\n".join(["l0: &l0 [x]", *levels]))
    assert any("without end" in line for line in problems(path, kernels))


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, kernels: Path, name: str) -> None:
    assert "can't be read" in problems(tmp_path / name, kernels)[0]


@given(st.text(max_size=200))
@settings(max_examples=150)
def test_any_text_is_either_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(BadInput):
        read(path)
