"""Source archives: fetched from the site's indexes by hash, and not looked into before that.

pip would run a source archive's own code to learn its metadata, with the network, before anything is built.
"""

from __future__ import annotations

import tarfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from harness.errors import BitmatrixError, Unavailable
from harness.files import sha256_file
from harness.lock import Pin
from harness.pipsite import Site

_DEFAULT_INDEX = "https://pypi.org/simple"
_SECONDS = 60
_BLOCK = 1 << 20


def fetch(pin: Pin, folder: Path, site: Site, index: str | None) -> Path:
    """Download the source archive of a pin into `folder`, from the first index that has one with the pin's hash.

    Raises BitmatrixError when none has it, Unavailable when it is a stub that only downloads something else.
    """
    said = []
    with requests.Session() as session:
        session.trust_env = not site.proxies
        session.proxies = {name.lower().removesuffix("_proxy"): value for name, value in site.proxies.items()}
        session.verify = site.settings.get("cert") or True
        session.cert = site.settings.get("client-cert")
        for page in _pages(pin, site, index):
            try:
                for name, address in _links(session, page):
                    if _is(name, pin) and _download(session, address, folder / name, pin):
                        _refuse_stub(folder / name, pin)
                        return folder / name
            except (requests.RequestException, OSError) as error:
                said.append(f"{urlsplit(page).hostname or page}: {type(error).__name__}")
    more = f" ({'; '.join(said)})" if said else ""
    raise BitmatrixError(
        f"{pin.name}=={pin.version}: no index that this site reaches has a source archive of it with the lock's "
        f"hash{more}; add the index that has it as the stack's `index`, or make the lock again: nox -s lock"
    )


def _pages(pin: Pin, site: Site, index: str | None) -> Iterator[str]:
    """The pages that may list a package's files: find-links pages, then its page in each index."""
    yield from site.settings.get("find-links", "").split()
    indexes = [] if site.settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else [
        site.settings.get("index-url", _DEFAULT_INDEX),
        *site.settings.get("extra-index-url", "").split(),
        *filter(None, [index]),
    ]  # fmt: skip
    yield from (f"{address.rstrip('/')}/{pin.name}/" for address in indexes)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(session: requests.Session, page: str) -> Iterator[tuple[str, str]]:
    """File name and address of everything that a page links to, or that a local folder holds."""
    local = _local(page)
    if local is not None and local.is_dir() and not (local / "index.html").is_file():
        yield from ((path.name, path.as_uri()) for path in sorted(local.iterdir()))
        return
    if local is not None:
        text, address = (local / "index.html" if local.is_dir() else local).read_text(encoding="utf-8"), page
    else:
        answer = session.get(page, timeout=_SECONDS, headers={"Accept": "text/html"})
        if answer.status_code == requests.codes.not_found:
            return
        answer.raise_for_status()
        text, address = answer.text, answer.url
    anchors = _Anchors()
    anchors.feed(text)
    for target in anchors.targets:
        joined = urljoin(address, target)
        yield unquote(urlsplit(joined).path.rpartition("/")[2]), joined


def _local(address: str) -> Path | None:
    if address.startswith("/"):
        return Path(address)
    return Path(unquote(urlsplit(address).path)) if address.startswith("file://") else None


def _is(name: str, pin: Pin) -> bool:
    try:
        package, version = parse_sdist_filename(name)
    except InvalidSdistFilename:
        return False
    return package == canonicalize_name(pin.name) and str(version) == pin.version


def _download(session: requests.Session, address: str, path: Path, pin: Pin) -> bool:
    """Whether the file at `address` has one of the pin's hashes; kept only if so."""
    local = _local(address)
    if local is not None:
        path.write_bytes(local.read_bytes())
    else:
        with session.get(address, timeout=_SECONDS, stream=True) as answer, path.open("wb") as stream:
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
