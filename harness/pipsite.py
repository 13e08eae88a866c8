"""The site's way to packages: its indexes, proxy and CA bundle, for the fetch step alone.

pip itself resolves its configuration files and variables. What is found is handed to the fetching container as one
mounted file and read-only mounts, so none of it enters an image.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

_REACH = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)
"""The settings that say where packages are and how to get there. Others (a constraint, a target) would change what
is installed: the lock alone says that."""

_SECTIONS = ("global", "download", ":env:")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with a CA bundle that pip puts over its own `cert` setting."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """How packages are reached from here: pip settings, proxy variables, and the local paths that they name."""

    settings: dict[str, str]
    proxies: dict[str, str]
    paths: tuple[Path, ...]

    def beside(self, index: str | None) -> Site:
        """The same site with a further index."""
        if not index:
            return self
        extra = " ".join(filter(None, (self.settings.get("extra-index-url"), index)))
        return replace(self, settings={**self.settings, "extra-index-url": extra})

    def configuration(self, index: str | None = None) -> str:
        """A pip configuration file; `index` is asked beside the site's own indexes."""
        # A percent sign in a URL is configparser's interpolation to nobody: pip reads these files raw.
        lines = (f"{name} = {' '.join(value.split())}" for name, value in self.beside(index).settings.items())
        return "[global]\n" + "\n".join(lines) + "\n"

    def for_uv(self) -> dict[str, str]:
        """The same as variables of uv (not options: an index address may hold a password)."""
        values = {
            "UV_DEFAULT_INDEX": self.settings.get("index-url"),
            "UV_INDEX": self.settings.get("extra-index-url"),
            "UV_FIND_LINKS": ",".join(self.settings.get("find-links", "").split()),
            "UV_NO_INDEX": self.settings.get("no-index"),
            "UV_INSECURE_HOST": self.settings.get("trusted-host"),
            "SSL_CERT_FILE": self.settings.get("cert"),
            "SSL_CLIENT_CERT": self.settings.get("client-cert"),
            "ALL_PROXY": self.settings.get("proxy"),
            "UV_HTTP_TIMEOUT": self.settings.get("timeout", self.settings.get("default-timeout")),
            "UV_HTTP_RETRIES": self.settings.get("retries"),
        }
        return {**{name: " ".join(value.split()) for name, value in values.items() if value}, **self.proxies}


def find(environment: Mapping[str, str] = os.environ) -> Site:
    """This site's settings, from pip's configuration files and the environment."""
    settings = _pip_settings(environment)
    bundles = [environment[name] for name in BUNDLES if environment.get(name)]
    if bundles:
        settings["cert"] = bundles[0]
    elif environment.get("SSL_CERT_FILE"):
        settings.setdefault("cert", environment["SSL_CERT_FILE"])
    names = [name for lower in _PROXIES for name in (lower, lower.upper())]
    return Site(
        settings=settings,
        proxies={name: environment[name] for name in names if environment.get(name)},
        paths=tuple(dict.fromkeys(path for name, value in settings.items() for path in _local_paths(name, value))),
    )


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:  # this interpreter has no pip: the variables are all there is
        prefix = "PIP_"
        given = {name.removeprefix(prefix): value for name, value in environment.items() if name.startswith(prefix)}
        return {name.lower().replace("_", "-"): value for name, value in given.items() if _reaches(name)}
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found and _reaches(name):
            found[section][name] = str(ast.literal_eval(value))
    return {name: value for section in _SECTIONS for name, value in found[section].items()}


def _reaches(name: str) -> bool:
    return name.lower().replace("_", "-") in _REACH


def _local_paths(name: str, value: str) -> list[Path]:
    found = []
    for word in value.split():
        parts = urlsplit(word)
        path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(word)
        # An index's pages link to files beside it (../../files/...), not below it.
        path = path.parent if name.endswith("index-url") and len(path.parts) > 2 else path
        if path.is_absolute() and path.exists():
            found.append(path)
    return found
