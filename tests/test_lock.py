"""A lock holds exactly what its stack requires, and reads back as it was written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import environment, lock, matrix
from harness.errors import BadInput
from harness.lock import Pin
from harness.workspace import REPOSITORY, Workspace

DIGEST = "0123456789abcdef" * 4

pins_strategy = st.lists(
    st.builds(
        Pin,
        name=st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True),
        version=st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}(\+cpu)?", fullmatch=True),
        hashes=st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), min_size=1, max_size=3, unique=True).map(
            lambda hashes: tuple(sorted(hashes))
        ),
    ),
    max_size=6,
    unique_by=lambda pin: pin.name,
)


@given(pins=pins_strategy)
@settings(max_examples=40)
def test_a_lock_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, pins: list[Pin]) -> None:
    path = tmp_path_factory.getbasetemp() / "lock.txt"
    lock.write(path, stack="torch", device="cpu", requirements=["torch==2"], pins=pins)
    read = lock.read(path)
    assert read.pins == {pin.name: pin for pin in pins}
    assert read.requirements == ("torch==2",)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("numpy==2.4.6\n", 1),
        (f"# x\nnumpy>=2 --hash=sha256:{DIGEST}\n", 2),
        (f"numpy==2.4.6 --hash=md5:{DIGEST}\n", 1),
        (f"numpy==2.4.6 --hash=sha256:{DIGEST[:-1]}\n", 1),
        ("-e .\n", 1),
        ("--index-url https://evil\n", 1),
        (f"numpy @ https://x/y.whl --hash=sha256:{DIGEST}\n", 1),
        (f"numpy==1 --hash=sha256:{DIGEST}\nNumPy==2 --hash=sha256:{DIGEST}\n", 2),
    ],
)
def test_a_line_that_is_no_pin_with_hashes_is_refused(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput, match=f"{path}:{line}: "):
        lock.read(path)


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        (["numpy==2.4.6", "torch==2.13.0+cpu"], "was made for"),
        (["numpy==2.4.7"], "pins numpy 2.4.6, the matrix wants numpy==2.4.7"),
        (["scipy"], "has no scipy"),
    ],
)
def test_a_lock_that_does_not_meet_its_requirements_is_refused(
    tmp_path: Path, requirements: list[str], message: str
) -> None:
    made = tmp_path / "lock.txt"
    pins = [Pin(name="numpy", version="2.4.6", hashes=(DIGEST,))]
    lock.write(made, stack="golden", device="cpu", requirements=["numpy==2.4.6"], pins=pins)
    lock.check(lock.read(made), ["numpy==2.4.6"])
    with pytest.raises(BadInput, match="make it again: nox -s lock") as caught:
        lock.check(lock.read(made), requirements)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DIGEST, f"{DIGEST[:-1]}0"),
        ("numpy==2.4.6 \\", "numpy==2.4.7 \\"),
        ("# requirements: numpy==2.4.6", "# requirements: numpy"),
        ("--stack golden", "--stack other"),
        ("# sha256 without", "# sha256 with or without"),
    ],
)
def test_a_lock_edited_by_hand_is_refused(tmp_path: Path, old: str, new: str) -> None:
    made = tmp_path / "lock.txt"
    pins = [Pin(name="numpy", version="2.4.6", hashes=(DIGEST,))]
    lock.write(made, stack="golden", device="cpu", requirements=["numpy==2.4.6"], pins=pins)
    text = made.read_text()
    assert text.count(old) == 1
    made.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=r"edited|state its own digest"):
        lock.check(lock.read(made), list(lock.read(made).requirements))


def test_a_locks_digest_is_that_of_the_file_without_its_line(tmp_path: Path) -> None:
    made = tmp_path / "lock.txt"
    lock.write(
        made, stack="golden", device="cpu", requirements=["x"], pins=[Pin(name="x", version="1", hashes=("0" * 64,))]
    )
    rest = "".join(line for line in made.read_text().splitlines(keepends=True) if not line.startswith("# sha256"))
    assert lock.read(made).sha256 == hashlib.sha256(rest.encode()).hexdigest() == lock.read(made).stated


def test_every_committed_lock_meets_the_committed_matrix(kernels: Path, tmp_path: Path) -> None:
    declared = matrix.load(REPOSITORY / "matrix.yaml", kernels)
    workspace = Workspace(cache=tmp_path)
    for device in ("cpu", "cuda"):
        environment.check_locks(workspace, declared, device)
    assert lock.read(REPOSITORY / "images/locks/cpu/torch-x86_64-py3.11.txt").pins["torch"].version == "2.13.0+cpu"
