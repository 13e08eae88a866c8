"""An image is exactly its lock, and nothing of the site that it was fetched through is in it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import packages
import pytest
from conftest import Site

from harness import base, engine, image, matrix, pipsite, venv
from harness.base import BaseImage
from harness.engine import Request
from harness.errors import BitmatrixError
from harness.matrix import Base, Debootstrap
from harness.workspace import REPOSITORY


def inside(name: str, *command: str) -> str:
    request = Request(image=name, command=list(command), purpose="test")
    with engine.container(request) as made:
        made.start()
        made.wait(timeout=60)
        return str(made.logs().decode())


def top_layer(name: str) -> bytes:
    """The bytes of an image's last layer: what was committed over the base."""
    saved = io.BytesIO(b"".join(engine.client().images.get(name).save()))
    with tarfile.open(fileobj=saved) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        layer = archive.extractfile(manifest[0]["Layers"][-1])
        assert layer is not None
        return layer.read()


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_a_site_with_its_own_authority_works_and_leaves_no_trace(site: Site) -> None:
    made = site.image(site.lock())
    assert inside(made.name, image.PYTHON, "-c", "import bitmatrix_probe; print(bitmatrix_probe.ANSWER)") == "42\n"
    layer = top_layer(made.name)
    assert b"ANSWER = 42" in layer
    for trace in (site.authority.read_bytes().split(b"\n")[1], b"https://localhost", b"site-pip.conf", b"pip.conf"):
        assert trace not in layer
    configured = json.dumps(engine.client().images.get(made.name).attrs["Config"])
    assert "localhost" not in configured
    assert "PIP_" not in configured


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_an_image_holds_exactly_its_lock_and_is_made_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made = site.image(site.lock())
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    assert json.loads(inside(made.name, image.PYTHON, "-c", code)) == {packages.NAME: packages.VERSION}

    def no_container(request: Any) -> None:
        pytest.fail(f"made a container for {request.purpose}")

    monkeypatch.setattr(engine, "container", no_container)
    assert site.image(site.lock()) == made


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_a_wheel_whose_hash_is_off_is_refused_by_name(site: Site) -> None:
    with pytest.raises(BitmatrixError, match="fetching the lock's packages failed") as caught:
        site.image(site.lock("0" * 64))
    assert str(site.log) in str(caught.value)
    assert packages.NAME in site.log.read_text()
    assert not list((site.cache / "wheelhouses").glob("*py3.11")), "a failed fetch leaves no wheelhouse"


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_a_wheel_changed_after_the_fetch_is_refused_and_fetched_again(site: Site) -> None:
    lock = site.lock()
    first = site.image(lock)
    engine.client().images.remove(first.name, force=True)
    (fetched,) = (site.cache / "wheelhouses").glob("*/*.whl")
    fetched.write_bytes(fetched.read_bytes()[:-1])
    with pytest.raises(BitmatrixError, match="installing from the wheelhouse failed"):
        site.image(lock)
    assert site.image(lock).name == first.name


@pytest.mark.docker
def test_an_unreachable_index_is_a_failure_with_pips_words(
    site: Site, base_image: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://localhost:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(BitmatrixError, match=r"fetching the lock's packages failed: .*No matching distribution"):
        site.image(site.lock())


def test_a_virtual_environment_is_exactly_the_same_lock(site: Site) -> None:
    made = site.venv(site.lock())
    assert venv.installed(made.python)[1] == [[packages.NAME, packages.VERSION]]  # type: ignore[index]
    again = site.venv(site.lock())
    assert again == made


def test_a_virtual_environment_keeps_the_setuptools_that_its_lock_pins(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = packages.wheel(tmp_path / "links", "setuptools", "999.1", {"setuptools_probe.py": ""})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    made = site.venv(packages.lock_of(tmp_path / "pins.txt", {"setuptools": ("999.1", wheel)}))
    assert venv.installed(made.python)[1] == [["setuptools", "999.1"]]  # type: ignore[index]


def test_a_half_made_virtual_environment_is_made_again(site: Site) -> None:
    made = site.venv(site.lock())
    (made.python.parent.parent / "bitmatrix.json").unlink()
    made.python.unlink()
    again = site.venv(site.lock())
    assert subprocess.run([again.python, "-c", "import bitmatrix_probe"], check=False).returncode == 0


def test_a_python_that_is_not_here_makes_the_stack_unavailable_not_failed(site: Site) -> None:
    with pytest.raises(BitmatrixError, match=r"this host has no python3\.99 on its PATH") as caught:
        site.venv(site.lock(), python="3.99")
    assert type(caught.value).__name__ == "Unavailable"


def test_the_sites_settings_are_how_to_reach_packages_and_nothing_else(site: Site) -> None:
    found = pipsite.find()
    assert found.settings["cert"] == str(site.authority)
    assert found.settings["index-url"].startswith("https://localhost")
    assert "constraint" not in found.settings
    assert site.authority in found.paths
    assert "index-url = https://localhost" in found.configuration()
    assert found.configuration("https://other/simple").count("extra-index-url = https://other/simple") == 1


def test_paths_that_a_setting_names_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "index" / "simple").mkdir(parents=True)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": f"{tmp_path}/links https://elsewhere/x",
        "PIP_EXTRA_INDEX_URL": f"file://{tmp_path}/index/simple",
        "https_proxy": "http://proxy:3128",
    }
    found = pipsite.find(environment)
    assert {tmp_path / "links", tmp_path / "index"} <= set(found.paths)
    assert found.proxies == {"https_proxy": "http://proxy:3128"}


@pytest.mark.docker
def test_the_base_is_made_once_and_known_by_its_packages(base_image: BaseImage, tmp_path: Path) -> None:
    declared = matrix.load(REPOSITORY / "matrix.yaml", REPOSITORY / "kernels").bases["debian12"]
    assert base.ensure("debian12", declared, cache=tmp_path, log=tmp_path / "log") == base_image
    assert len(base_image.identity) == 64


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="says first that debootstrap isn't installed")
def test_a_base_that_needs_root_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    recipe = Debootstrap(
        suite="nowhere", mirror="http://localhost:9", packages=["python3", "python3-pip", "python3-venv"]
    )
    with pytest.raises(BitmatrixError, match=r"debootstrap needs root to make a base: run `sudo .* -m harness base`"):
        base.ensure("rootless", Base(python="3.11", debootstrap=recipe), cache=tmp_path, log=tmp_path / "log")


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="says first that debootstrap isn't installed")
def test_a_base_whose_packages_could_not_be_checked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "noble").write_text("mirror_style release\nkeyring /nowhere/ubuntu-archive-keyring.gpg\n")
    monkeypatch.setattr(base, "_SCRIPTS", scripts)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    recipe = Debootstrap(
        suite="noble", mirror="http://localhost:9", packages=["python3", "python3-pip", "python3-venv"]
    )
    with pytest.raises(BitmatrixError, match=r"can't be checked without /nowhere.*`apt-get install ubuntu-keyring`"):
        base.ensure("noble", Base(python="3.12", debootstrap=recipe), cache=tmp_path, log=tmp_path / "log")
    (scripts / "noble").unlink()
    with pytest.raises(BitmatrixError, match="debootstrap doesn't know the suite noble"):
        base.ensure("noble", Base(python="3.12", debootstrap=recipe), cache=tmp_path, log=tmp_path / "log")


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="needs Debian's docker-registry to pull from")
def test_a_base_is_pulled_by_digest(base_image: BaseImage, registry: str, tmp_path: Path) -> None:
    name = f"{registry}/base"
    client = engine.client()
    client.images.get(base_image.name).tag(name, "test")
    pushed = [json.loads(line) for line in client.images.push(name, "test").splitlines()]
    digest = next(line["aux"]["Digest"] for line in pushed if "aux" in line)
    client.images.remove(f"{name}:test")
    assert engine.find_image(f"{name}@{digest}") is None
    declared = Base(python="3.11", image=f"{name}@{digest}")
    try:
        made = base.ensure("pulled", declared, cache=tmp_path, log=tmp_path / "log")
        assert made.identity == f"{name}@{digest}"
        assert made.image_id == base_image.image_id
    finally:
        client.images.remove(f"{name}@{digest}")


@pytest.mark.docker
def test_a_base_without_its_digest_in_the_engine_is_pulled_or_refused(tmp_path: Path) -> None:
    declared = Base(python="3.11", image=f"localhost:9/nothing@sha256:{'0' * 64}")
    with pytest.raises(BitmatrixError, match="pulling the base gone"):
        base.ensure("gone", declared, cache=tmp_path, log=tmp_path / "log")
