"""Package indexes: which files of a package the site's own pages list, and so which releases it has.

Pages are those of the simple index in HTML (PEP 503), folders of files, and pages that link to files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from harness.errors import BitmatrixError
from harness.pipsite import Site

SECONDS = 60
_DEFAULT_INDEX = "https://pypi.org/simple"
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file that a page lists."""

    name: str
    address: str
    yanked: bool = False


@contextlib.contextmanager
def session(site: Site) -> Iterator[requests.Session]:
    """A session that goes the site's way: its proxies and certificates."""
    with requests.Session() as made:
        made.trust_env = not site.proxies
        made.proxies = {name.lower().removesuffix("_proxy"): value for name, value in site.proxies.items()}
        made.verify = site.settings.get("cert") or True
        made.cert = site.settings.get("client-cert")
        yield made


def pages(name: str, site: Site, index: str | None) -> Iterator[str]:
    """The pages that may list a package's files: find-links pages, then its page in each index."""
    yield from site.settings.get("find-links", "").split()
    indexes = [] if site.settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else [
        site.settings.get("index-url", _DEFAULT_INDEX),
        *site.settings.get("extra-index-url", "").split(),
        *filter(None, [index]),
    ]  # fmt: skip
    yield from (f"{address.rstrip('/')}/{name}/" for address in indexes)


def links(session: requests.Session, page: str) -> Iterator[Link]:
    """Everything that a page links to, or that a local folder holds; nothing where there is no such page."""
    local = local_path(page)
    if local is not None and not local.exists():
        return
    if local is not None and local.is_dir() and not (local / "index.html").is_file():
        yield from (Link(name=path.name, address=path.as_uri()) for path in sorted(local.iterdir()))
        return
    if local is not None:
        text, address = (local / "index.html" if local.is_dir() else local).read_text(encoding="utf-8"), page
    else:
        answer = session.get(page, timeout=SECONDS, headers={"Accept": "text/html"}, stream=True)
        if answer.status_code == requests.codes.not_found:
            return
        answer.raise_for_status()
        content = answer.raw.read(_LARGEST_BYTES, decode_content=True)
        text, address = content.decode(answer.encoding or "utf-8", errors="replace"), answer.url
    anchors = _Anchors()
    anchors.feed(text)
    for target, yanked in anchors.found:
        joined = urljoin(address, target)
        name = unquote(urlsplit(joined).path.rpartition("/")[2])
        yield Link(name=name, address=joined, yanked=yanked)


def releases(name: str, site: Site, index: str | None) -> tuple[dict[Version, bool], list[str]]:
    """Every release of a package that an index lists a file of -> whether all of its files are yanked (PEP 592).

    Beside them which indexes couldn't be asked, and why. Raises BitmatrixError when none that could has the package.
    """
    found: dict[Version, bool] = {}
    unasked = []
    with session(site) as made:
        for page in pages(name, site, index):
            try:
                for link in links(made, page):
                    version = _release(link.name, name)
                    if version is not None:
                        found[version] = found.get(version, True) and link.yanked
            except (requests.RequestException, OSError) as error:
                unasked.append(f"{urlsplit(page).hostname or page} ({type(error).__name__})")
    if unasked and not found:
        raise BitmatrixError(
            f"the releases of {name} can't be listed: {', '.join(unasked)} can't be asked; check the index and proxy "
            "in pip's configuration (`pip config list`)"
        )
    return found, unasked


def local_path(address: str) -> Path | None:
    """The path of a local address; None for any other."""
    if address.startswith("/"):
        return Path(address)
    return Path(unquote(urlsplit(address).path)) if address.startswith("file://") else None


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []
        """Each target, and whether it is marked as yanked."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        target = given.get("href")
        if tag == "a" and target:
            self.found.append((target, "data-yanked" in given))


def _release(file: str, name: str) -> Version | None:
    """The version of a package's wheel or source archive; None for any other file."""
    for parse, wrong in ((parse_wheel_filename, InvalidWheelFilename), (parse_sdist_filename, InvalidSdistFilename)):
        with contextlib.suppress(wrong):
            package, version = parse(file)[:2]
            return version if package == canonicalize_name(name) else None
    return None
