"""Source trees at a commit: fetched by the host's git in the networked step, verified at every use."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BitmatrixError
from harness.files import locked, temporary_folder
from harness.matrix import Source
from harness.process import logged

# The tree as it was committed: no conversion of line ends, no filter, whatever its own .gitattributes say.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A checked export of one commit. `tree` is git's hash of all its files."""

    name: str
    path: Path
    commit: str
    tree: str


def ensure(source: Source, *, cache: Path, log: Path) -> Tree:
    """The source's files, fetched unless the cache has them whole.

    Every object's hash is checked, and every exported file against the commit. Raises BitmatrixError when the remote
    can't be reached or doesn't have the commit.
    """
    key = hashlib.sha256(source.git.encode()).hexdigest()[:16]
    repository = cache / "sources" / f"{source.name}-{key}.git"
    export = cache / "sources" / f"{source.name}-{source.commit}" / source.name
    with locked(repository.with_suffix(".lock")):
        if not _holds(repository, source.commit):
            shutil.rmtree(repository, ignore_errors=True)
            _fetch(source, repository, log)
        if not _is_export(repository, source.commit, export):
            shutil.rmtree(export.parent, ignore_errors=True)
            _export(repository, source.commit, export)
        tree = _git(repository, "rev-parse", f"{source.commit}^{{tree}}")
    return Tree(name=source.name, path=export, commit=source.commit, tree=tree)


def _fetch(source: Source, repository: Path, log: Path) -> None:
    """That commit alone where the server gives single commits, else all of its history."""
    what = f"source {source.name}: fetching from {source.git}"
    with temporary_folder(repository.parent, source.name) as temporary:
        _git(temporary, "init", "--quiet", "--bare")
        git = ["git", "--git-dir", str(temporary), "fetch", "--quiet", "--no-tags"]
        try:
            logged([*git, "--depth=1", source.git, source.commit], log=log, what=what, environment=_environment())
        except BitmatrixError:
            everything = "+refs/*:refs/remotes/all/*"
            try:
                logged([*git, source.git, everything], log=log, what=what, environment=_environment())
            except BitmatrixError as error:
                raise BitmatrixError(
                    f"{error}; check the address (`sources` in matrix.yaml) and this host's way to it"
                ) from error
        if not _holds(temporary, source.commit):
            raise BitmatrixError(
                f"source {source.name}: {source.git} has no commit {source.commit}; correct it in matrix.yaml"
            )
        temporary.rename(repository)


def _holds(repository: Path, commit: str) -> bool:
    """Whether the repository has the commit with every object below it, each of the hash that it is named by."""
    if not repository.is_dir():
        return False
    try:
        _git(repository, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")
        _git(repository, "fsck", "--full", "--no-dangling", "--no-reflogs", commit)
    except BitmatrixError:
        return False
    return True


def _export(repository: Path, commit: str, export: Path) -> None:
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    with temporary_folder(export.parent.parent, "export") as temporary:
        (temporary / export.name).mkdir()
        index = {"GIT_INDEX_FILE": str(temporary / "index")}
        _git(repository, "read-tree", commit, more=index)
        place = temporary / export.name
        _git(repository, "--work-tree", str(place), "checkout-index", "--all", more=index, place=place)
        (temporary / "index").unlink()
        temporary.rename(export.parent)
    if not _is_export(repository, commit, export):
        raise BitmatrixError(f"{export}: git exported other files than {commit} holds; is the disk full?")


def _is_export(repository: Path, commit: str, export: Path) -> bool:
    """Whether the folder holds exactly the commit's files: names, modes and contents. Submodules aren't fetched."""
    if not export.is_dir():
        return False
    with temporary_folder(export.parent, "index") as temporary:
        index = {"GIT_INDEX_FILE": str(temporary / "index")}
        _git(repository, "--work-tree", str(export), "add", "--all", "--force", ".", more=index, place=export)
        found = _git(repository, "ls-files", "--stage", "-z", more=index)
    listed = _git(repository, "ls-tree", "-r", "-z", commit)
    there = {tuple(line.replace("\t", " ", 1).split(" ", 3)) for line in found.split("\0") if line}
    wanted = {tuple(line.replace("\t", " ", 1).split(" ", 3)) for line in listed.split("\0") if line}
    files = {(mode, digest, name) for mode, kind, digest, name in wanted if kind != "commit"}
    return {(mode, digest, name) for mode, digest, _, name in there} == files


def _git(repository: Path, *arguments: str, more: dict[str, str] | None = None, place: Path | None = None) -> str:
    """What git prints. Raises BitmatrixError with its last line, or when there is no git."""
    command = ["git", "--git-dir", str(repository), *arguments]
    environment = _environment() | (more or {})
    try:
        ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise BitmatrixError(
            "source trees are fetched with git, which isn't installed: `apt-get install git`"
        ) from error
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit {ended.returncode}"]
        raise BitmatrixError(f"git {arguments[0]} in {repository}: {said[-1]}")
    return ended.stdout.decode(errors="surrogateescape").strip("\n")


def _environment() -> dict[str, str]:
    """This environment without another repository's variables; git must not ask for a password."""
    kept = ("GIT_SSL", "GIT_SSH", "GIT_PROXY", "GIT_CONFIG", "GIT_EXEC_PATH")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(kept)
    }
    return {**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
