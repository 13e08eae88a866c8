"""A YAML document read strictly, with the line of every value.

PyYAML merges duplicate keys silently and reads `on` as true, `16:8` as 968 and `010` as 8. Here a plain scalar
is a number, a boolean or null only when it is written the one obvious way; any other that YAML would convert stays a
`Ambiguous`, which no field accepts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.errors import BadInput

Path_ = tuple[str | int, ...]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_MAX_VALUES = 100_000
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Ambiguous:
    """A plain scalar that YAML 1.1 would turn into something else than its text, e.g. `on`, `010`, `16:8`."""

    text: str


class Problem(NamedTuple):
    """One thing wrong with a document: its line (1-based), the path of keys to it, and what to do."""

    line: int
    path: Path_
    message: str


@dataclass(frozen=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None, Ambiguous) and where each value stands."""

    file: Path
    data: Any
    lines: dict[Path_, int]
    texts: dict[Path_, str]
    problems: tuple[Problem, ...]

    def line(self, path: Path_) -> int:
        """The line of the value at `path`, or of its nearest ancestor that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: Path_) -> str:
    """`devices.cpu.modes.plain`, `cases[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def fail(file: Path, problems: list[Problem]) -> None:
    """Raise BadInput with a line for each problem, in the order of the document; nothing when there is none."""
    if problems:
        lines = [
            f"{file}:{problem.line}: {dotted(problem.path) or 'document'}: {problem.message}"
            for problem in sorted(set(problems), key=lambda problem: (problem.line, dotted(problem.path)))
        ]
        raise BadInput("\n".join(lines))


def read(file: Path) -> Document:
    """Read `file`. Raises BadInput when it can't be read or isn't YAML; finer problems are in `.problems`."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{file}: can't be read ({error.strerror}); name another with --matrix FILE") from error
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{file}: larger than {_MAX_BYTES >> 20} MiB; this is no matrix")
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInput(f"{file}:{line}: document: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{file}:1: document: not valid YAML: {' '.join(str(error).split())}") from error
    if root is None:
        raise BadInput(f"{file}:1: document: the file is empty")
    builder = _Builder()
    data = builder.value(root, ())
    return Document(file, data, builder.lines, builder.texts, tuple(builder.problems))


class _Builder:
    """Turns nodes into plain data, noting lines and problems on the way."""

    def __init__(self) -> None:
        self.lines: dict[Path_, int] = {}
        self.texts: dict[Path_, str] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path_) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.ScalarNode):
            self.texts[path] = node.value
            return self._scalar(node)
        # An alias repeats a node: without this a few lines could stand for billions of values, or for themselves.
        if id(node) in self._open or len(self.lines) > _MAX_VALUES or len(path) > 50:
            self.problems.append(Problem(line, path, "nested or repeated without end; write it out"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(line, path, "a key must be a plain word"))
                continue
            key = key_node.value
            if key in result:
                first = self.lines[(*path, key)]
                self.problems.append(
                    Problem(line, (*path, key), f"this key stands twice (first on line {first}); keep one")
                )
                continue
            self.lines[(*path, key)] = line
            result[key] = self.value(child, (*path, key))
        return result

    @staticmethod
    def _scalar(node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if node.style is not None or node.tag == "tag:yaml.org,2002:str":
            return text
        if text in ("true", "false"):
            return text == "true"
        if text in ("null", "~", ""):
            return None
        if _INTEGER.fullmatch(text):
            return int(text) if len(text) < 20 else Ambiguous(text)
        return float(text) if _DECIMAL.fullmatch(text) else Ambiguous(text)
