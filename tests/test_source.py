"""A source is exactly the files of its commit, wherever its branches go and whatever happens to the cache."""

from __future__ import annotations

import functools
import http.server
import subprocess
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import matrix, source
from harness.errors import BadInput, BitmatrixError
from harness.matrix import Source
from harness.source import Tree


class Remote:
    """A git repository with one commit, and where the tests keep what they fetch from it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.log = folder / "remote", folder / "cache", folder / "log.txt"
        self.folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit = self.add({"engine/__init__.py": "ANSWER = 42\n", "run.sh": "#!/bin/sh\n"})

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "core.autocrlf=false"]
        command = ["git", *who, "-C", str(self.folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def add(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(text.encode())
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "test")
        return self.git("rev-parse", "HEAD")

    def fetch(self, commit: str | None = None, address: str | None = None) -> Tree:
        declared = Source(
            name="engine", git=address or f"file://{self.folder}", commit=commit or self.commit, kind="tree"
        )
        return source.ensure(declared, cache=self.cache, log=self.log)


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


def test_a_commit_is_fetched_with_its_tree_hash_and_nothing_of_git(remote: Remote) -> None:
    made = remote.fetch()
    assert made.commit == remote.commit
    assert made.tree == remote.git("rev-parse", "HEAD^{tree}")
    assert sorted(path.name for path in made.path.rglob("*") if path.is_file()) == ["__init__.py", "run.sh"]


def test_a_moved_branch_changes_nothing(remote: Remote) -> None:
    first = remote.commit
    remote.add({"engine/__init__.py": "ANSWER = 41\n"})
    assert (remote.fetch(first).path / "engine/__init__.py").read_text() == "ANSWER = 42\n"


def test_what_the_trees_own_attributes_ask_for_changes_no_byte(remote: Remote) -> None:
    attributes = "* text=auto eol=crlf\n*.id ident export-subst\nhidden export-ignore\n"
    remote.add({".gitattributes": attributes, "a.id": "$Id$\n", "hidden": "x\n", "lines": "1\n2\n"})
    commit = remote.git("rev-parse", "HEAD")
    made = remote.fetch(commit)
    assert (made.path / "lines").read_bytes() == b"1\n2\n"
    assert (made.path / "a.id").read_bytes() == b"$Id$\n"
    assert (made.path / "hidden").is_file()
    assert remote.fetch(commit) == made


def test_a_commit_that_the_remote_lacks_is_named(remote: Remote) -> None:
    with pytest.raises(BitmatrixError, match=f"has no commit {'0' * 40}; correct it in matrix.yaml"):
        remote.fetch("0" * 40)
    assert not list((remote.cache / "sources").glob("*/engine"))


def test_a_remote_that_cannot_be_reached_is_named_with_gits_words(remote: Remote) -> None:
    with pytest.raises(BitmatrixError, match=r"fetching from http://localhost:9/x failed .*check the address"):
        remote.fetch(address="http://localhost:9/x")


@pytest.mark.parametrize(
    "tamper",
    [
        lambda tree: (tree.path / "engine" / "__init__.py").write_text("ANSWER = 13\n"),
        lambda tree: (tree.path / "more.py").write_text(""),
        lambda tree: (tree.path / "run.sh").unlink(),
        lambda tree: (tree.path / "run.sh").chmod(0o755),
    ],
)
def test_a_changed_cache_is_made_again(remote: Remote, tamper: Callable[[Tree], object]) -> None:
    made = remote.fetch()
    tamper(made)
    assert remote.fetch() == made
    assert (made.path / "engine" / "__init__.py").read_text() == "ANSWER = 42\n"
    assert not (made.path / "more.py").exists()


def test_a_damaged_object_in_the_cache_is_fetched_again(remote: Remote) -> None:
    made = remote.fetch()
    blob = remote.git("rev-parse", "HEAD:engine/__init__.py")
    (found,) = remote.cache.glob(f"sources/*.git/objects/{blob[:2]}/{blob[2:]}")
    found.chmod(0o644)
    found.write_bytes(zlib.compress(b"blob 12\0ANSWER = 13\n"))
    assert remote.fetch() == made


def test_a_server_that_gives_no_single_commit_is_asked_for_everything(remote: Remote) -> None:
    """A plain file server speaks git's old protocol, which knows no depth."""
    first = remote.commit
    remote.add({"later": ""})
    remote.git("update-server-info")
    handler = functools.partial(_Silent, directory=str(remote.folder / ".git"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        made = remote.fetch(first, f"http://127.0.0.1:{server.server_address[1]}/")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert not (made.path / "later").exists()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("commit", ["52fbcbc", "main", "0DF83A5A38B5E2063154E2C750FF10BD8B335F89"])
def test_a_pin_that_is_no_full_commit_is_refused_with_its_line(
    matrix_file: Callable[..., Path], kernels: Path, commit: str
) -> None:
    entry = f'{{name: engine, git: "https://example.org/e.git", commit: "{commit}", kind: tree}}'
    old = 'requirements: ["numpy==2.4.6"]\n'
    path = matrix_file((old, f"{old}        sources: [{entry}]\n"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "sources" in text)
    message = rf"matrix\.yaml:{line}: .*commit: must be a full commit of 40 hex digits \(`git rev-parse NAME`\)"
    with pytest.raises(BadInput, match=message):
        matrix.load(path, kernels)
