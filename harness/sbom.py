"""Bills of materials: what is installed in a stack, in CycloneDX's format, by CycloneDX's own tool for Python.

The tool reads the installed environment. An image has no such tool and no network: the stack's own Python copies the
descriptions of its packages out of it, and the tool reads them on the host as the environment that they were.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from harness import engine, lock
from harness.engine import Mount, Request
from harness.environment import Environment
from harness.errors import BadInput, BitmatrixError
from harness.files import temporary_folder, write_text
from harness.process import logged, reason_in
from harness.workspace import Workspace

SPECIFICATION = "1.6"
_SECONDS = 600


def make(workspace: Workspace, device: str, environment: Environment) -> Path:
    """Write the bill of materials of a stack's environment to out/sboms/; returns its file.

    Raises BadInput when the tool isn't installed, BitmatrixError when it fails or what it made isn't of the format.
    """
    if importlib.util.find_spec("cyclonedx_py") is None:
        raise BadInput(
            "a bill of materials is made with cyclonedx-bom, which isn't installed: "
            f"{sys.executable} -m pip install -c constraints.txt --group sbom"
        )
    folder = workspace.out / "sboms"
    log = folder / f"{device}-{environment.stack}.log"
    log.unlink(missing_ok=True)
    with temporary_folder(folder, environment.stack) as work, _python(environment, work, workspace, log) as python:
        made = work / "bom.json"
        options = ["--spec-version", SPECIFICATION, "--output-format", "JSON", "--output-reproducible"]
        command = [sys.executable, "-m", "cyclonedx_py", "environment", *options, "--output-file", str(made)]
        logged([*command, str(python)], log=log, what=f"the bill of materials of {environment.stack}")
        bom = json.loads(made.read_text(encoding="utf-8"))
    text = json.dumps(_described(bom, workspace, environment), indent=2) + "\n"
    _validate(text, log)
    path = folder / f"{device}-{environment.stack}.cdx.json"
    write_text(path, text)
    log.unlink()
    return path


@contextmanager
def _python(environment: Environment, work: Path, workspace: Workspace, log: Path) -> Iterator[Path]:
    """An interpreter of the host that sees exactly the stack's packages."""
    if environment.isolation != "docker":
        yield Path(environment.python)
        return
    assert environment.image_id is not None
    inventory = work / "inventory"
    inventory.mkdir()
    request = Request(
        image=environment.image_id,
        purpose="inventory",
        command=[environment.python, "-I", "/mnt/inventory.py", "/mnt/out"],
        mounts=(
            Mount(workspace.root / "images" / "inventory.py", "/mnt/inventory.py"),
            Mount(inventory, "/mnt/out", writable=True),
        ),
        options={"network_mode": "none", **engine.as_caller()},
    )
    with engine.container(request) as container:
        ending = engine.run(container, log=log, seconds=_SECONDS)
    if ending.exit_code:
        raise BitmatrixError(f"looking into {environment.image} failed: {reason_in(log)}; the whole log: {log}")
    skeleton = work / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", skeleton], check=True, capture_output=True)
    (packages,) = skeleton.glob("lib/python3*/site-packages")
    for described in inventory.rglob("*"):
        if described.is_symlink():
            raise BitmatrixError(f"{environment.image}: {described.name} of a package's description is a symbolic link")
    for described in inventory.iterdir():
        described.rename(packages / described.name)
    yield skeleton / "bin" / "python"


def _described(bom: dict[str, Any], workspace: Workspace, environment: Environment) -> dict[str, Any]:
    """The bill with what it is of, and with each package's pinned hash where the lock has one alone."""
    facts = {
        "isolation": environment.isolation,
        "base": environment.base,
        "lock": environment.lock,
        "lock_sha256": environment.lock_sha256,
    }
    subject: dict[str, Any] = {
        "type": "container" if environment.image else "application",
        "bom-ref": f"stack-{environment.stack}",
        "name": environment.image or environment.stack,
        "properties": [{"name": f"bitmatrix:{name}", "value": value} for name, value in facts.items() if value],
    }
    if environment.image_id:
        subject["hashes"] = [{"alg": "SHA-256", "content": environment.image_id.removeprefix("sha256:")}]
    bom["metadata"] = {**bom.get("metadata", {}), "component": subject}
    path = workspace.root / (environment.lock or "")
    pins = lock.read(path).pins if environment.lock and path.is_file() else {}
    for component in bom.get("components", []):
        pin = pins.get(canonicalize_name(component["name"]))
        if pin and pin.version == component.get("version") and len(pin.hashes) == 1:
            component["hashes"] = [{"alg": "SHA-256", "content": pin.hashes[0]}]
    return bom


def _validate(text: str, log: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if found is not None:
        raise BitmatrixError(f"what cyclonedx-py made isn't valid CycloneDX {SPECIFICATION}: {str(found)[:300]}; {log}")
