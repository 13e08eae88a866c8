"""Source archives: fetched from the site's indexes by hash, and not looked into before that.

pip would run a source archive's own code to learn its metadata, with the network, before anything is built.
"""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import requests
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from harness import index as indexes
from harness.errors import BitmatrixError, Unavailable
from harness.files import sha256_file
from harness.index import local_path
from harness.lock import Pin
from harness.pipsite import Site

_BLOCK = 1 << 20


def fetch(pin: Pin, folder: Path, site: Site, index: str | None) -> Path:
    """Download the source archive of a pin into `folder`, from the first index that has one with the pin's hash.

    Raises BitmatrixError when none has it, Unavailable when it is a stub that only downloads something else.
    """
    said = []
    with indexes.session(site) as session:
        for page in indexes.pages(pin.name, site, index):
            try:
                for link in indexes.links(session, page):
                    if _is(link.name, pin) and _download(session, link.address, folder / link.name, pin):
                        _refuse_stub(folder / link.name, pin)
                        return folder / link.name
            except (requests.RequestException, OSError) as error:
                said.append(f"{urlsplit(page).hostname or page}: {type(error).__name__}")
    more = f" ({'; '.join(said)})" if said else ""
    raise BitmatrixError(
        f"{pin.name}=={pin.version}: no index that this site reaches has a source archive of it with the lock's "
        f"hash{more}; add the index that has it as the stack's `index`, or make the lock again: nox -s lock"
    )


def _is(name: str, pin: Pin) -> bool:
    try:
        package, version = parse_sdist_filename(name)
    except InvalidSdistFilename:
        return False
    return package == canonicalize_name(pin.name) and str(version) == pin.version


def _download(session: requests.Session, address: str, path: Path, pin: Pin) -> bool:
    """Whether the file at `address` has one of the pin's hashes; kept only if so."""
    local = local_path(address)
    if local is not None:
        path.write_bytes(local.read_bytes())
    else:
        with session.get(address, timeout=indexes.SECONDS, stream=True) as answer, path.open("wb") as stream:
            answer.raise_for_status()
            for block in answer.iter_content(_BLOCK):
                stream.write(block)
    if sha256_file(path) in pin.hashes:
        return True
    path.unlink()
    return False


def _refuse_stub(archive: Path, pin: Pin) -> None:
    """Raise Unavailable for an archive without a source: a backend that downloads a wheel from an index of its own."""
    tool = _pyproject(archive)
    if not str(tool.get("build-system", {}).get("build-backend", "")).startswith("wheel_stub"):
        return
    wanted = tool.get("tool", {}).get("wheel_stub", {}).get("index_url", "another index")
    archive.unlink()
    raise Unavailable(
        f"{pin.name}=={pin.version} is a stub: it has no source and downloads its wheel from {wanted} while it is "
        f"built, which nothing here may do. Where {wanted} is reached, take {pin.name} out of `build.from_source`, "
        "give that address as the stack's `index`, and make the lock again: nox -s lock"
    )


def _pyproject(archive: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The archive's pyproject.toml; empty when it has none."""
    if not tarfile.is_tarfile(archive):
        return {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.count("/") == 1 and member.name.endswith("/pyproject.toml"):
                found = tar.extractfile(member)
                try:
                    return tomllib.loads(found.read(_BLOCK).decode()) if found else {}
                except (UnicodeDecodeError, tomllib.TOMLDecodeError):
                    return {}
    return {}
