"""matrix.yaml: what is compared, where each part of it runs, as closed and typed objects.

`load` reports every problem at once, each with its line; a Matrix that loads is consistent in itself.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.document import Ambiguous, Document, Path_, Problem, fail, read
from harness.errors import BadInput

LARGEST_CASE = 65_536


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f'a range of versions is wanted, e.g. ">=0.30.0,<0.31", not {text!r}') from error
    return text


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Case = Annotated[int, Field(ge=1, le=LARGEST_CASE)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Value = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4096)]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", min_length=1, max_length=500)]
Digest = Annotated[str, Field(pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$")]
Function = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]
Tag = Annotated[str, Field(pattern=r"^[a-z0-9][^\s@]*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Remote = Annotated[str, Field(pattern=r"^(https?|ssh|git|file)://[^\s]+$")]
Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=64)]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
Program = Annotated[str, Field(pattern=r"^/[^\s]+$")]
Versions = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=200), AfterValidator(_specifier)]
Architecture = Literal["x86_64", "aarch64"]
DeviceName = Literal["cpu", "cuda"]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Debootstrap(_Closed):
    """A base made from a distribution's packages, where no image registry can be reached."""

    suite: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.-]*$")]
    """The distribution's release, e.g. bookworm."""
    mirror: Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
    components: list[Name] = ["main"]
    packages: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]]
    """Installed beside the minimal system; python3, python3-pip and python3-venv must be among them."""


class Base(_Closed):
    """What a stack's image starts from: an image by digest, or a distribution's packages. Exactly one."""

    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")]
    """The Python that the base brings; it chooses the lock."""
    image: Digest | None = None
    """name@sha256:digest; a tag alone can change under its users."""
    debootstrap: Debootstrap | None = None


class Source(_Closed):
    """A source tree at one commit, which no package index has."""

    name: Package
    git: Remote
    commit: Commit
    """All 40 digits: what a short commit, a branch or a tag names can change."""
    kind: Literal["tree", "build"]
    """`tree` is put on the stack's sys.path as it is; `build` is built into a wheel, which is installed."""
    gpu: bool = False
    """Whether its build looks for the GPU that it is for; the image is then one for that compute capability."""
    imports: list[Module] = []
    """Modules that must import once it is installed, e.g. an extension that a build may leave out silently."""


class Build(_Closed):
    """What is built from source for a stack, without a network, and what that needs."""

    requirements: Annotated[list[str], Field(min_length=1)]
    """Build tools, locked beside the stack's own packages and installed for the build alone."""
    from_source: list[Package] = []
    """Packages of the lock of which there is no wheel; every other is only ever a wheel."""
    environment: dict[Variable, Value] = {}
    """Variables of the build."""


class Stack(_Closed):
    """A pinned software environment: all that changes an image, and nothing that doesn't.

    It is made from a lock on a base, or it is a published image. Exactly one of `base`, `image` and `tag`.
    """

    base: Name | None = None
    requirements: list[str] = []
    """What the lock is resolved from, in pip's notation."""
    resolver: Literal["pip", "uv"] = "pip"
    """What resolves it: pip inside the base, or uv on the host, which needs no base to resolve for its Python."""
    index: Annotated[str, Field(pattern=r"^https?://[^\s]+$")] | None = None
    """A further package index, asked when the site's own lacks something; the lock's hashes hold there too."""
    build: Build | None = None
    sources: list[Source] = []
    image: Digest | None = None
    """A published image by digest."""
    tag: Tag | None = None
    """A published image by tag: the digest that `nox -s lock` records for it is what runs."""
    python: Program | None = None
    """The interpreter inside a published image."""


class Activation(_Closed):
    """The call that switches a mode on, made in the cell's process before its first operator."""

    function: Function
    """`package.module:function`."""
    versions: Versions | None = None
    """The releases of the package that have it there, e.g. ">=0.30.0": the words of a cell whose version has not."""
    elsewhere: dict[Function, Versions] = {}
    """Where other releases keep it; the first that the installed version has is called."""
    arguments: dict[Variable, str | int | bool | float | None] = {}


class Mode(_Closed):
    """A numerics mode of a stack; it never changes the image."""

    stack: Name
    environment: dict[Variable, Value] = {}
    """Set before the process starts, over the device's environment."""
    activation: Activation | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads, where other than the device's."""
    architectures: list[Architecture] | None = None
    """Where the mode exists; elsewhere its cells are unavailable. Default: everywhere."""
    capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    """The least compute capability of a GPU that the mode supports, e.g. "8.0"; below it its cells are unavailable."""


class Candidate(_Closed):
    """An implementation of the op: kernels/<op>/candidates/<name>.py, in one stack or in several modes."""

    source: Text
    """One line for the report: what this is."""
    modes: Annotated[list[Name], Field(min_length=1)] | None = None
    """Its cells are `candidate[mode]`, one a mode, each in the mode's stack."""
    stack: Name | None = None
    """For a candidate without modes: its one cell is named without brackets."""
    library: bool = False
    """Whether it runs the op's kernel library, compiled from kernels/<op>/src."""
    required: bool = True
    """Whether a run fails when one of its cells isn't done."""


class Limits(_Closed):
    """What one cell may take before it is stopped."""

    seconds: Annotated[int, Field(ge=1, le=7 * 24 * 3600)] = 3600
    memory_gib: Annotated[int, Field(ge=1, le=4096)] = 16
    processes: Annotated[int, Field(ge=16, le=1_000_000)] = 4096


class Repeatability(_Closed):
    """The same call again, and the whole cell again in another process."""

    calls: Annotated[int, Field(ge=1, le=100)] = 1
    """Calls more of each case."""
    second_process: bool = True


class BatchInvariance(_Closed):
    """Whether a row's results depend on what shares its call."""

    quick: bool = False
    """Batches of up to 64 rows, for a laptop; else up to 2048, as strict as the published check."""


class Accuracy(_Closed):
    """Errors against the op in FP64."""


class Latency(_Closed):
    """Time of a call, forward and forward with backward."""

    repeats: Annotated[int, Field(ge=1, le=100_000)] = 100
    warmup: Annotated[int, Field(ge=0, le=1000)] = 10
    seconds: Annotated[int, Field(ge=1, le=600)] = 5
    """The most that one figure's calls may take, and its warming as much again; at least three calls are timed."""


class Precision(_Closed):
    """How many significant bits the path keeps."""


class Measures(_Closed):
    """What each cell measures after its captures; a measure that isn't named isn't taken."""

    repeatability: Repeatability | None = None
    precision: Precision | None = None
    accuracy: Accuracy | None = None
    batch_invariance: BatchInvariance | None = None
    latency: Latency | None = None


class Device(_Closed):
    """The matrix of one kind of device."""

    threads: Annotated[int, Field(ge=1, le=1024)]
    """CPU threads of every cell; a cell fails when its framework uses another number."""
    environment: dict[Variable, Value] = {}
    """Set for every cell of the device."""
    limits: Limits = Limits()
    measures: Measures = Measures()
    stacks: Annotated[dict[Name, Stack], Field(min_length=1)]
    toolchain: Name | None = None
    """The stack that holds the compiler of the op's kernel library."""
    modes: dict[Name, Mode] = {}
    candidates: Annotated[dict[Name, Candidate], Field(min_length=1)]
    references: Annotated[list[str], Field(min_length=1)]
    """The cells that every other is compared with; the first one's stack is the report's environment."""


class Devices(_Closed):
    """The matrix by device."""

    cpu: Device | None = None
    cuda: Device | None = None


class ReportHead(_Closed):
    """What the published format's first keys say."""

    kind: Text
    rfc: Text
    kernel: Name | None = None
    """The candidate whose source `rl_kernel_commit` speaks of, on a device that has it; else this repository's."""
    libraries: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], Name] = {}
    """Library -> the stack that owns it, in the report's order."""


class Matrix(_Closed):
    """The whole of matrix.yaml."""

    format: Literal[1]
    op: Name
    cases: Annotated[list[Case], Field(min_length=1)]
    """Batch sizes, in the order in which every cell runs them."""
    report: ReportHead
    bases: dict[Name, Base]
    devices: Devices

    def device(self, name: DeviceName) -> Device:
        """The device's matrix; raises BadInput when it isn't declared."""
        device = self.devices.cpu if name == "cpu" else self.devices.cuda
        if device is None:
            raise BadInput(f"the matrix declares no device {name}; add devices.{name} or choose another --device")
        return device


def load(file: Path, kernels: Path) -> Matrix:
    """Read and check the matrix in `file` against the op folders in `kernels`.

    Raises BadInput with `file:LINE: path: message` for every problem found.
    """
    document = read(file)
    problems = [*document.problems, *_references(document, kernels)]
    matrix = None
    try:
        matrix = Matrix.model_validate(document.data)
    except ValidationError as error:
        problems += [_problem(document, detail) for detail in error.errors()]
    fail(file, problems)
    assert matrix is not None
    return matrix


def cell_name(candidate: str, mode: str | None) -> str:
    """`diffusers[plain]`; a candidate without modes is its own cell."""
    return candidate if mode is None else f"{candidate}[{mode}]"


# Type errors, in words -----------------------------------------------------------------------------------------------

_BY_PATTERN = {
    r"^[a-z][a-z0-9_]*$": "must be a name of small letters, digits and _ that starts with a letter",
    r"^[^\s@]+@sha256:[0-9a-f]{64}$": "must be an image by digest, name@sha256:<64 hex digits>; a tag can change",
    r"^[0-9a-f]{40}$": "must be a full commit of 40 hex digits (`git rev-parse NAME`); a shorter name can change",
    r"^[a-z0-9][^\s@]*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$": "must be an image with a tag, name:tag",
    r"^/[^\s]+$": "must be an absolute path",
    r"^[0-9]{1,2}\.[0-9]$": 'must be a compute capability, e.g. "9.0"',
    r"^[^\x00-\x1f\x7f]*$": "must be one line of text without control characters",
}


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    path = tuple(part for part in detail["loc"] if part != "[key]")
    at_key = "[key]" in detail["loc"]
    return Problem(document.line(path), path, _message(document, detail, path, at_key=at_key))


def _message(document: Document, detail: ErrorDetails, path: Path_, *, at_key: bool) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return "unknown key" + _suggest(str(path[-1]), _fields(path[:-1]))
        case "missing":
            return "this key is missing"
        case "string_type" if not isinstance(given, list | dict | None):
            return f'must be text: write "{document.texts.get(path, given)}", in quotes'
        case "string_pattern_mismatch":
            what = "the key " if at_key else ""
            return what + _BY_PATTERN.get(context["pattern"], f"must match {context['pattern']}") + f", not {given!r}"
        case "int_type" if isinstance(given, str):
            return f"must be a whole number without quotes, not {given!r}"
        case _ if isinstance(given, Ambiguous):
            return f"`{given.text}` is no plain value here (YAML would read it as another); quote it if text is meant"
        case _:
            text = detail["msg"].removeprefix("Input ").removeprefix("should be ")
            return f"must be {text[0].lower() + text[1:]}" + (f", not {given!r}" if _short(given) else "")


def _short(given: Any) -> bool:
    return isinstance(given, str | int | float | bool) and len(str(given)) <= 60


def _suggest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f" (did you mean `{close[0]}`?)"
    return f" (known: {', '.join(known)})" if known else ""


def _fields(path: Path_) -> list[str]:
    """The keys that the model allows at `path`."""
    annotation: Any = Matrix
    for part in path:
        annotation = _inside(annotation, part)
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _inside(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return _bare(field.annotation) if field else None
    arguments = typing.get_args(annotation)
    return _bare(arguments[-1]) if arguments else None


def _bare(annotation: Any) -> Any:
    while typing.get_origin(annotation) in (Annotated, types.UnionType, typing.Union):
        annotation = typing.get_args(annotation)[0]
    return annotation


# References between the parts ----------------------------------------------------------------------------------------
# They are checked on the plain data, so that a type error elsewhere doesn't hide them.


def _references(document: Document, kernels: Path) -> Iterator[Problem]:
    data = _mapping(document.data)

    def problem(path: Path_, message: str) -> Problem:
        return Problem(document.line(path), path, message)

    yield from (problem(*found) for found in _check_op(data, kernels))
    yield from (problem(*found) for found in _check_bases(_mapping(data.get("bases"))))
    owners = {
        name for device in _mapping(data.get("devices")).values() for name in _mapping(_mapping(device).get("stacks"))
    }
    candidates = {
        name
        for device in _mapping(data.get("devices")).values()
        for name in _mapping(_mapping(device).get("candidates"))
    }
    kernel = _mapping(data.get("report")).get("kernel")
    if isinstance(kernel, str) and kernel not in candidates:
        yield problem(
            ("report", "kernel"), f"no device has a candidate `{kernel}`{_suggest(kernel, sorted(candidates))}"
        )
    for library, owner in _mapping(_mapping(data.get("report")).get("libraries")).items():
        if isinstance(owner, str) and owner not in owners:
            yield problem(
                ("report", "libraries", library), f"no device has a stack `{owner}`{_suggest(owner, sorted(owners))}"
            )
    for name, device in _mapping(data.get("devices")).items():
        for path, message in _check_device(_mapping(device), _mapping(data.get("bases"))):
            yield problem(("devices", name, *path), message)
        for path, message in _check_candidates(_mapping(device), kernels / str(data.get("op"))):
            yield problem(("devices", name, *path), message)


Found = Iterator[tuple[Path_, str]]


def _check_op(data: Mapping[str, Any], kernels: Path) -> Found:
    op = data.get("op")
    known = sorted(path.parent.name for path in kernels.glob("*/op.py"))
    if isinstance(op, str) and op not in known:
        yield ("op",), f"kernels/ has no op `{op}`{_suggest(op, known)}"
    yield from _repeated(data.get("cases"), ("cases",), "case")


def _check_bases(bases: Mapping[str, Any]) -> Found:
    for name, base in bases.items():
        given = [key for key in ("image", "debootstrap") if _mapping(base).get(key) is not None]
        if len(given) != 1:
            yield ("bases", name), "must have exactly one of `image` (by digest) and `debootstrap`"
        packages = _mapping(_mapping(base).get("debootstrap")).get("packages")
        missing = {"python3", "python3-pip", "python3-venv"} - set(_strings(packages))
        if isinstance(packages, list) and missing:
            yield ("bases", name, "debootstrap", "packages"), f"must hold {', '.join(sorted(missing))} too"


def _check_device(device: Mapping[str, Any], bases: Mapping[str, Any]) -> Found:
    stacks = _mapping(device.get("stacks"))
    for name, stack in stacks.items():
        for path, message in _check_stack(_mapping(stack), bases):
            yield ("stacks", name, *path), message
    yield from _known(device.get("toolchain"), stacks, ("toolchain",), "stack")
    for name, mode in _mapping(device.get("modes")).items():
        yield from _known(_mapping(mode).get("stack"), stacks, ("modes", name, "stack"), "stack")


_OF_A_LOCK = ("requirements", "index", "build", "sources")


def _check_stack(stack: Mapping[str, Any], bases: Mapping[str, Any]) -> Found:
    given = [key for key in ("base", "image", "tag") if stack.get(key) is not None]
    if len(given) != 1:
        yield (), "must have exactly one of `base`, `image` (a published image by digest) and `tag`"
    yield from _known(stack.get("base"), bases, ("base",), "base")
    yield from _check_requirements(stack.get("requirements"), ("requirements",))
    yield from _check_requirements(_mapping(stack.get("build")).get("requirements"), ("build", "requirements"))
    if given == ["base"]:
        if not stack.get("requirements"):
            yield (), "`requirements` is missing or empty: say what the lock is resolved from"
        if stack.get("python") is not None:
            yield ("python",), "is the interpreter of a published image; a base has its own"
    elif given:
        if stack.get("python") is None:
            yield (), "`python` is missing: the interpreter inside the image, e.g. /usr/bin/python3"
        for key in _OF_A_LOCK:
            if stack.get(key):
                yield (key,), "a published image is taken as it is; this belongs to a stack with a `base`"
    if _mapping(stack.get("build")).get("from_source") and stack.get("resolver") != "uv":
        yield ("build", "from_source"), "needs `resolver: uv`; pip runs an archive's code to resolve it"
    yield from _check_sources(stack)


def _check_sources(stack: Mapping[str, Any]) -> Found:
    sources = stack.get("sources")
    names = [_mapping(source).get("name") for source in sources] if isinstance(sources, list) else []
    yield from _repeated(names, ("sources",), "source")
    for index, source in enumerate(sources if isinstance(sources, list) else []):
        if _mapping(source).get("kind") == "build" and stack.get("build") is None:
            yield ("sources", index), "is built: say with what in the stack's `build.requirements`"
        if _mapping(source).get("kind") == "tree" and _mapping(source).get("gpu"):
            yield ("sources", index, "gpu"), "a tree is taken as it is; only what is built can need a GPU"


def _check_requirements(requirements: Any, path: Path_) -> Found:
    for index, text in enumerate(requirements if isinstance(requirements, list) else []):
        try:
            requirement = Requirement(text) if isinstance(text, str) else None
        except InvalidRequirement:
            yield (*path, index), f'{text!r} is no requirement in pip\'s notation, e.g. "torch==2.13.0"'
            continue
        if requirement and requirement.url:
            yield (*path, index), f"{text!r} names an address; a lock holds packages of an index"


def _check_candidates(device: Mapping[str, Any], op: Path) -> Found:
    cells: list[str] = []
    for name, candidate in _mapping(device.get("candidates")).items():
        path = ("candidates", name)
        modes, stack = _mapping(candidate).get("modes"), _mapping(candidate).get("stack")
        if (modes is None) == (stack is None):
            yield path, "must have exactly one of `modes` and `stack`"
        yield from _known(stack, _mapping(device.get("stacks")), (*path, "stack"), "stack")
        yield from _repeated(modes, (*path, "modes"), "cell", partial(cell_name, name))
        for index, mode in enumerate(_strings(modes)):
            yield from _known(mode, _mapping(device.get("modes")), (*path, "modes", index), "mode")
        if (op / "op.py").is_file() and not (op / "candidates" / f"{name}.py").is_file():
            yield path, f"kernels/{op.name}/candidates/{name}.py does not exist; write it or remove the candidate"
        cells += [cell_name(name, mode) for mode in _strings(modes)] or [name]
        if _mapping(candidate).get("library") is True and device.get("toolchain") is None:
            yield (*path, "library"), "needs the device's `toolchain`, the stack that compiles the kernel library"
    references = device.get("references")
    yield from _repeated(references, ("references",), "reference")
    for index, reference in enumerate(_strings(references)):
        yield from _known(reference, dict.fromkeys(cells), ("references", index), "cell")


def _known(name: Any, known: Mapping[str, Any], path: Path_, what: str) -> Found:
    if isinstance(name, str) and name not in known:
        yield path, f"there is no {what} `{name}`{_suggest(name, list(known))}"


def _repeated(values: Any, path: Path_, what: str, label: Callable[[Any], str] = str) -> Found:
    if isinstance(values, list):
        for value, count in Counter(value for value in values if isinstance(value, str | int)).items():
            if count > 1:
                index = len(values) - 1 - values[::-1].index(value)
                yield (*path, index), f"the {what} `{label(value)}` stands {count} times; keep one"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
