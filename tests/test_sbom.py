"""A stack's bill of materials lists what is installed, and nothing else, in CycloneDX's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import GOOD, Project

from harness import cli, lock


@pytest.mark.parametrize("isolation", [pytest.param("docker", marks=pytest.mark.docker), "venv"])
def test_a_bill_of_materials_is_the_lock_as_installed(tmp_path: Path, isolation: str) -> None:
    project = Project(tmp_path, {"good": GOOD})
    options = project.options(isolation=isolation)
    assert cli.main(["image", "golden", *options]) == 0
    assert cli.main(["sbom", "golden", *options]) == 0
    path = project.out / "sboms" / "cpu-golden.cdx.json"
    text = path.read_text()
    bom = json.loads(text)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    (locked,) = (project.root / "images" / "locks" / "cpu").glob("golden-*")
    pins = lock.read(locked).pins
    found = {one["name"]: (one["version"], one["hashes"][0]["content"]) for one in bom["components"]}
    assert found == {name: (pin.version, pin.hashes[0]) for name, pin in pins.items()}
    subject = bom["metadata"]["component"]
    assert {"name": "bitmatrix:lock_sha256", "value": lock.read(locked).sha256} in subject["properties"]
    environment = json.loads((project.out / "stacks" / f"cpu-golden-{isolation}.json").read_text())["environment"]
    if isolation == "docker":
        assert subject["hashes"][0]["content"] == environment["image_id"].removeprefix("sha256:")
    assert cli.main(["sbom", "golden", *options]) == 0
    assert path.read_text() == text, "the same stack gives the same bytes"
    assert sorted(one.name for one in path.parent.iterdir()) == ["cpu-golden.cdx.json"]
