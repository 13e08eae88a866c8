"""The cell's process: what it checks, what it leaves, how it ends. Each test runs the real module in a process."""

from __future__ import annotations

import ast
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from cell import jobs
from cell.jobs import REPOSITORY, Ending
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, load_file

from harness.cell import dispatch, hardware, job
from harness.cell.capture import Raw, checked, write
from harness.cell.dispatch import Snapshot
from harness.cell.op import ROWS, Op, Tensor
from harness.cell.status import LIFELINE_CUT, Status

DONE, UNAVAILABLE, FAILED = (status.exit_code for status in Status)


def ended(root: Path, source: str = jobs.NUMPY, **changes: Any) -> Ending:
    return jobs.run(root, jobs.stage(root, source) | changes)


def refused(ending: Ending, code: int, *words: str) -> None:
    """The cell ended with `code` and a reason that holds all `words`, and left nothing but its claims."""
    claims = ending.claims
    assert (ending.code, claims["status"]) == (code, "unavailable" if code == UNAVAILABLE else "failed")
    assert all(word in claims["reason"] for word in words), claims["reason"]
    assert [path.name for path in ending.output.iterdir()] == ["claims.json"]


# What a cell that is done leaves


def test_a_done_cell_leaves_one_file_a_case_and_its_claims(tmp_path: Path) -> None:
    ending = ended(tmp_path)
    assert (ending.code, ending.claims["status"], ending.claims["reason"]) == (DONE, "done", None)
    names = {path.name for path in ending.output.iterdir()}
    assert names == {"case-1.safetensors", "case-3.safetensors", "claims.json"}
    x, w = (np.load(tmp_path / "inputs" / f"{name}.npy") for name in "xw")
    for case in (1, 3):
        tensors = load_file(ending.output / f"case-{case}.safetensors")
        np.testing.assert_array_equal(tensors["out"], x[:case] @ w.T)
        assert list(ending.claims["tensors"][str(case)]) == ["out", "grads.x", "grads.w"]
        for name, claim in ending.claims["tensors"][str(case)].items():
            digest = hashlib.sha256(tensors[name].tobytes()).hexdigest()
            assert claim == {"dtype": "F32", "shape": list(tensors[name].shape), "sha256": digest}


def test_cases_run_in_the_stated_order_and_each_phase_is_timed(tmp_path: Path) -> None:
    ending = ended(tmp_path)
    seconds = ending.claims["seconds"]
    cases = ["case 3", "write 3", "case 1", "write 1"]
    assert list(seconds) == ["start", "inputs", "import", "load", *cases, "facts"]
    assert all(value >= 0 for value in seconds.values())
    assert [line.partition(":")[0] for line in ending.stdout.splitlines()] == [*seconds, "done"]


def test_the_claims_repeat_the_digests_that_were_checked(tmp_path: Path) -> None:
    work = jobs.stage(tmp_path)
    assert jobs.run(tmp_path, work).claims["inputs"] == work["inputs"]["digests"]


def test_an_op_with_several_outputs_of_other_dtypes_and_no_gradients(tmp_path: Path) -> None:
    op = """
        from harness.cell.op import ROWS, Input, Op, Tensor

        OP = Op(
            name="several",
            inputs=(Input(name="x", shape=(ROWS, 4), stream=1),),
            outputs=(
                Tensor(name="positive", shape=(ROWS, 4), dtype="BOOL"),
                Tensor(name="half", shape=(4, ROWS), dtype="F16"),
                Tensor(name="sum", shape=(), dtype="F64"),
                Tensor(name="order", shape=(ROWS,), dtype="I64"),
            ),
        )
    """
    candidate = """
        import numpy as np

        def load(context):
            return lambda given: {
                "order": given["x"].argmax(axis=1).astype(np.int64),
                "positive": given["x"] > 0,
                "sum": np.array(given["x"].sum(), dtype=np.float64),
                "half": given["x"].astype(np.float16).T,
            }
    """
    ending = jobs.run(tmp_path, jobs.stage(tmp_path, candidate, op=op, cases=(3,)))
    assert ending.code == DONE, ending.stderr
    x = np.load(tmp_path / "inputs" / "x.npy")
    tensors = load_file(ending.output / "case-3.safetensors")
    np.testing.assert_array_equal(tensors["half"], x.astype(np.float16).T)
    np.testing.assert_array_equal(tensors["positive"], x > 0)
    assert tensors["sum"].shape == ()
    assert ending.claims["tensors"]["3"]["order"]["dtype"] == "I64"


def test_a_case_s_results_are_freed_before_the_next_case_runs(tmp_path: Path) -> None:
    candidate = """
        import weakref
        import numpy as np

        def load(context):
            earlier = []

            def run(given):
                assert all(reference() is None for reference in earlier), "still alive"
                rows = len(given["x"])
                results = {
                    "out": np.zeros((rows, 2), np.float32),
                    "grads.x": np.zeros((rows, 3), np.float32),
                    "grads.w": np.zeros((2, 3), np.float32),
                }
                earlier.extend(weakref.ref(array) for array in results.values())
                return results

            return run
    """
    ending = ended(tmp_path, candidate)
    assert ending.code == DONE, ending.stderr


def test_facts_tell_what_was_imported_and_what_the_process_changed(tmp_path: Path) -> None:
    (tmp_path / "shadow.py").write_text("__version__ = '7'\nimport os\nos.environ['LATE'] = 'yes'\n")
    work = jobs.stage(tmp_path, f"import shadow\n{jobs.NUMPY}")
    facts = jobs.run(tmp_path, work, {**jobs.environment(tmp_path, work), "UNDECLARED": "seen"}).claims["facts"]
    shadow = {
        "file": str(tmp_path / "shadow.py"),
        "version": "7",
        "distribution": None,
        "installed": None,
        "owned": None,
    }
    assert facts["modules"]["shadow"] == shadow
    assert facts["modules"]["numpy"]["version"] == facts["numpy"]["version"] == np.__version__
    assert facts["distributions"]["numpy"] == np.__version__
    assert facts["environment"]["declared"] == {"OMP_NUM_THREADS": "1"}
    assert facts["environment"]["other"]["UNDECLARED"] == "seen"
    assert facts["environment"]["changed"]["LATE"] == [None, "yes"]
    assert facts["torch"] is None
    assert facts["gpu"] is None
    assert "unreadable" not in json.dumps(facts)


# Modes


def test_the_activation_is_called_with_its_arguments_before_the_candidate_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "switch.py").write_text("EVENTS = []\n\ndef enable(**arguments):\n    EVENTS.append(arguments)\n")
    candidate = jobs.NUMPY + dedent("""
        import sys

        assert "switch" not in sys.modules, "the mode was imported before the candidate"
        right = load

        def load(context):
            import switch
            assert switch.EVENTS == [{"backend": "small"}], switch.EVENTS
            return right(context)
    """)
    activation = {"function": "switch:enable", "arguments": {"backend": "small"}}
    ending = ended(tmp_path, candidate, activation=activation)
    assert ending.code == DONE, ending.stderr
    assert list(ending.claims["seconds"])[2:5] == ["import", "activate", "load"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("absent_framework.modes:enable", ("package absent_framework is not installed",)),
        ("numpy.absent.modes:enable", (f"numpy {np.__version__} has no numpy.absent.modes:enable",)),
        ("numpy.linalg:enable", (f"numpy {np.__version__} has no numpy.linalg:enable",)),
    ],
)
def test_a_mode_that_this_version_lacks_is_unavailable_and_names_the_version(
    tmp_path: Path, function: str, words: tuple[str, ...]
) -> None:
    refused(ended(tmp_path, activation={"function": function, "arguments": {}}), UNAVAILABLE, *words)


def test_the_place_that_the_installed_version_has_is_called(tmp_path: Path) -> None:
    (tmp_path / "switch").mkdir()
    (tmp_path / "switch" / "__init__.py").touch()
    (tmp_path / "switch" / "older.py").write_text("def enable():\n    pass\n")
    activation = {"function": "switch.newer:enable", "versions": ">=2", "elsewhere": {"switch.older:enable": "<2"}}
    ending = ended(tmp_path, activation=activation)
    assert ending.code == DONE, ending.stderr
    assert ending.claims["activation"]["function"] == "switch.older:enable"


def test_a_mode_that_no_place_has_names_the_versions_that_have_it(tmp_path: Path) -> None:
    activation = {"function": "numpy.a:enable", "versions": ">=9", "elsewhere": {"numpy.b:enable": ">=8,<9"}}
    words = ("numpy.a:enable (in versions >=9)", "numpy.b:enable (in versions >=8,<9)")
    refused(ended(tmp_path, activation=activation), UNAVAILABLE, f"numpy {np.__version__} has no", *words)


def test_an_argument_that_this_version_does_not_take_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "switch.py").write_text("def enable():\n    pass\n")
    activation = {"function": "switch:enable", "arguments": {"backend": "small"}}
    refused(ended(tmp_path, activation=activation), UNAVAILABLE, "switch:enable", "backend")


def test_a_variable_that_the_activation_sets_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "switch.py").write_text("import os\n\ndef enable():\n    os.environ['SMALL'] = '1'\n")
    claims = ended(tmp_path, activation={"function": "switch:enable"}).claims
    assert claims["activation"]["environment"] == {"SMALL": [None, "1"]}


def test_an_activation_that_raises_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "switch.py").write_text("def enable():\n    raise ValueError('no such card')\n")
    refused(ended(tmp_path, activation={"function": "switch:enable"}), FAILED, "ValueError: no such card")


def test_dispatch_differences_name_operator_key_and_registering_file() -> None:
    line = "{}: registered at {} :: (Tensor _0) -> Tensor _0 [ boxed unboxed ]\n"
    head = "name: aten::mm\nschema: aten::mm(Tensor self) -> Tensor\ndebug: registered at schema.cpp:6\n"
    native = line.format("CPU", "native.cpp:1") + line.format("Autograd[alias]", "auto.cpp:2")
    replaced = line.format("CPU", "/site/mode.py:8") + line.format("CPU (inactive)", "native.cpp:1")
    before = Snapshot(operators={"aten::mm": head + native, "aten::add": head}, functions={"torch.bmm": len})
    after = Snapshot(
        operators={"aten::mm": head + replaced + line.format("CUDA", "/site/mode.py:9"), "aten::add": head},
        functions={"torch.bmm": ended, "torch.new": len},
    )
    assert dispatch.overrides(before, before) == dispatch.patches(before, before) == []
    assert dispatch.overrides(before, after) == [
        {
            "operator": "aten::mm",
            "key": "Autograd[alias]",
            "before": "registered at auto.cpp:2",
            "after": None,
        },
        {
            "operator": "aten::mm",
            "key": "CPU",
            "before": "registered at native.cpp:1",
            "after": "registered at /site/mode.py:8",
        },
        {"operator": "aten::mm", "key": "CUDA", "before": None, "after": "registered at /site/mode.py:9"},
    ]
    (patch,) = dispatch.patches(before, after)
    assert patch["function"] == "torch.bmm"
    assert patch["before"] == "builtins.builtin_function_or_method len"
    assert patch["after"].startswith(f"{__file__}:")


# Facts about the machine or a package


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("import absent_package.sub\n", ("package absent_package is not installed",)),
        ("import numpy.absent\n", (f"numpy {np.__version__} has no module numpy.absent",)),
        ("from numpy import absent\n", (f"numpy {np.__version__} can't be imported", "absent")),
        ("raise ImportError('please install extras')\n", ("please install extras",)),
        ("def load(context):\n    import absent_package\n", ("package absent_package is not installed",)),
        ("from harness.cell.op import Unavailable\nraise Unavailable('no FMA here')\n", ("no FMA here",)),
        (
            "from harness.cell.op import Unavailable\ndef load(context):\n    raise Unavailable('no FMA here')\n",
            ("no FMA here",),
        ),
    ],
)
def test_what_the_stack_or_machine_lacks_makes_a_cell_unavailable(
    tmp_path: Path, candidate: str, words: tuple[str, ...]
) -> None:
    refused(ended(tmp_path, candidate), UNAVAILABLE, *words)


# Faults


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ZeroDivisionError('by hand')", ("ZeroDivisionError: by hand",)),
        ("raise SystemExit(0)", ("SystemExit",)),
        ("return right | {'out': right['out'][:, :1]}", ("case 3", "out is F32 (3, 1)", "declares F32 (3, 2)")),
        ("return right | {'out': right['out'].astype('f8')}", ("out is F64", "declares F32")),
        ("return right | {'out': right['out'].astype('c8')}", ("out has dtype complex64",)),
        ("return right | {'out': right['out'].tolist()}", ("out is list",)),
        ("return right | {'more': right['out']}", ("more, out where the op has grads.w, grads.x, out",)),
        ("return {'out': right['out']}", ("returned out where the op has grads.w, grads.x, out",)),
        ("return list(right.values())", ("returned list",)),
        ("given['w'][0] = 0", ("read-only",)),
        ("import harness.absent", ("harness.absent",)),
    ],
)
def test_a_wrong_run_is_failed_in_words(tmp_path: Path, body: str, words: tuple[str, ...]) -> None:
    candidate = jobs.NUMPY + dedent(f"""
        do_right = load

        def load(context):
            def run(given):
                right = do_right(context)(given)
                {body}

            return run
    """)
    ending = ended(tmp_path, candidate)
    refused(ending, FAILED, *words)
    assert "Traceback" in ending.stderr


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("from harness import plan_of_the_host\n", ("plan_of_the_host",)),
        ("import harness.absent\n", ("harness.absent",)),
        ("def load(context)\n", ("SyntaxError",)),
        ("", ("has no attribute 'load'",)),
    ],
)
def test_a_candidate_s_own_mistakes_are_faults_not_facts(
    tmp_path: Path, candidate: str, words: tuple[str, ...]
) -> None:
    refused(ended(tmp_path, candidate), FAILED, *words)


def test_a_missing_candidate_is_a_fault_that_names_the_file(tmp_path: Path) -> None:
    refused(ended(tmp_path, candidate="gone"), FAILED, "candidates/gone.py")


RUNS_ONLY_IF_CHECKED = "raise RuntimeError('the candidate was reached')\n"


@pytest.mark.parametrize("name", ["x", "w", "upstream"])
def test_a_changed_input_is_refused_by_name_before_the_candidate_sees_it(tmp_path: Path, name: str) -> None:
    work = jobs.stage(tmp_path, RUNS_ONLY_IF_CHECKED)
    path = tmp_path / "inputs" / f"{name}.npy"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    refused(jobs.run(tmp_path, work), FAILED, f"input {name}", "digest")


@pytest.mark.parametrize(
    "replacement", [np.zeros((3, 3), "<f8"), np.zeros((2, 3), "<f4"), np.zeros((3, 3), "<f4", order="F"), None]
)
def test_an_input_of_another_form_is_refused(tmp_path: Path, replacement: Any) -> None:
    work = jobs.stage(tmp_path, RUNS_ONLY_IF_CHECKED)
    path = tmp_path / "inputs" / "x.npy"
    path.write_bytes(b"not npy") if replacement is None else np.save(path, replacement)
    refused(jobs.run(tmp_path, work), FAILED, "input x", str(path))


def test_a_case_without_a_declared_digest_is_refused(tmp_path: Path) -> None:
    work = jobs.stage(tmp_path, RUNS_ONLY_IF_CHECKED)
    del work["inputs"]["digests"]["x"]["1"]
    refused(jobs.run(tmp_path, work), FAILED, "input x at 1 rows", "none is declared")


@pytest.mark.parametrize("found", [{}, {"OMP_NUM_THREADS": "2"}])
def test_another_environment_than_declared_is_refused(tmp_path: Path, found: dict[str, str]) -> None:
    work = jobs.stage(tmp_path, RUNS_ONLY_IF_CHECKED)
    environment = jobs.environment(tmp_path, work | {"environment": {}}) | found
    refused(jobs.run(tmp_path, work, environment), FAILED, "OMP_NUM_THREADS", "declared '1'")


def test_a_library_is_handed_on_only_with_its_declared_digest(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"machine code")
    declared = {"path": str(library), "sha256": hashlib.sha256(b"machine code").hexdigest()}
    candidate = """
        def load(context):
            raise RuntimeError(f"{context.library} {context.device} {context.threads}")
    """
    work = jobs.stage(tmp_path, candidate) | {"library": declared}
    refused(jobs.run(tmp_path, work), FAILED, f"{library} cpu 1")
    library.write_bytes(b"other code")
    refused(jobs.run(tmp_path, work), FAILED, str(library), "digest", declared["sha256"])


def test_a_file_that_does_not_fit_is_failed_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    candidate = jobs.NUMPY + dedent("""
        import resource
        right = load

        def load(context):
            def run(given):
                resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
                return right(context)(given)

            return run
    """)
    work = jobs.stage(tmp_path, candidate, cases=(1, 5000))
    ending = jobs.run(tmp_path, work)
    assert (ending.code, ending.claims["status"]) == (FAILED, "failed")
    assert ending.claims["reason"].startswith("case-5000.safetensors can't be written: ")
    assert {path.name for path in ending.output.iterdir()} == {"case-1.safetensors", "claims.json"}


def test_claims_that_can_t_be_written_end_in_the_log_and_the_exit_code(tmp_path: Path) -> None:
    ending = ended(tmp_path, "raise RuntimeError('first')\n", output=str(tmp_path / "absent"))
    assert ending.code == FAILED
    assert "the claims can't be written" in ending.stderr
    assert "RuntimeError: first" in ending.stderr.splitlines()[-1]


# How a cell ends before its time

ASLEEP = """
    import time
    from pathlib import Path

    def load(context):
        Path("asleep").touch()
        time.sleep(60)
"""


def started(root: Path, **changes: Any) -> subprocess.Popen[bytes]:
    """A cell that sleeps in its candidate."""
    work = jobs.stage(root, ASLEEP) | changes
    process = subprocess.Popen(
        jobs.command(root, work), env=jobs.environment(root, work), cwd=root, stdin=subprocess.PIPE
    )
    while not (root / "asleep").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_a_cell_on_a_lifeline_ends_when_its_host_goes_away(tmp_path: Path) -> None:
    with started(tmp_path, lifeline=True) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=2) == LIFELINE_CUT
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_cell_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(timeout=2) == -number


# Jobs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema 1"),
        ({"colour": "red"}, "doesn't know colour"),
        ({"threads": "1"}, "threads can't be '1'"),
        ({"device": "tpu"}, "device must be cpu or cuda"),
        ({"cases": [1, 0]}, "cases must be positive"),
        ({"cases": []}, "cases must be positive"),
        ({"activation": {"call": "a:b"}}, "call"),
        ({"inputs": {}}, "folder"),
    ],
)
def test_a_job_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(jobs.stage(tmp_path) | change))
    with pytest.raises(job.BadJob, match=words):
        job.read(path)


def test_an_unreadable_job_is_failed_with_the_file_in_the_log(tmp_path: Path) -> None:
    work = jobs.stage(tmp_path)
    del work["threads"]
    ending = jobs.run(tmp_path, work)
    assert ending.code == FAILED
    assert "job.json: ValueError: the job lacks threads" in ending.stderr


# Captures


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_result_reads_back_with_the_same_bytes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dtypes = {"F64": ">f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "u1", "BOOL": "?"}
    names = data.draw(st.lists(st.sampled_from(sorted(dtypes)), min_size=1, unique=True))
    results, outputs = {}, []
    for name in names:
        shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
        values = np.frombuffer(data.draw(st.binary(min_size=216, max_size=216)), dtype=dtypes[name])
        results[name] = np.resize(values, shape[::-1]).T if 0 not in shape else np.zeros(shape, dtypes[name])
        outputs.append(Tensor(name=name, shape=shape, dtype=name))
    path = tmp_path_factory.mktemp("capture") / "case-1.safetensors"
    write(path, checked(Op(name="any", inputs=(), outputs=tuple(outputs)), 1, results))
    tensors = load(path.read_bytes())
    assert tensors.keys() == results.keys()
    for name, expected in results.items():
        assert tensors[name].shape == expected.shape
        assert tensors[name].tobytes() == expected.astype(expected.dtype.newbyteorder("<")).tobytes()


def test_every_tensor_in_a_file_is_aligned_to_its_elements(tmp_path: Path) -> None:
    raws = [
        Raw(name="bytes", dtype="U8", shape=(3,), data=memoryview(bytes(3))),
        Raw(name="doubles", dtype="F64", shape=(1,), data=memoryview(bytes(8))),
    ]
    write(tmp_path / "t", raws)
    text = (tmp_path / "t").read_bytes()
    size = int.from_bytes(text[:8], "little")
    start = json.loads(text[8 : 8 + size])["doubles"]["data_offsets"][0]
    assert (8 + size + start) % 8 == 0


def test_a_shape_with_rows_elsewhere_is_captured_for_its_case() -> None:
    op = Op(name="any", inputs=(), outputs=(Tensor(name="out", shape=(2, ROWS)),))
    (raw,) = checked(op, 5, {"out": np.zeros((2, 5), np.float32)})
    assert raw.shape == (2, 5)


# Hardware


def test_cpu_model_reads_x86_and_arm() -> None:
    x86 = (
        "processor\t: 0\nmodel name\t: Some Xeon\nmodel\t\t: 106\nflags\t\t: sse2 avx\n\nprocessor\t: 1\nflags\t: no\n"
    )
    arm = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\nprocessor\t: 1\n"
    assert hardware.cpu_model(x86) == {"model": "Some Xeon", "model_number": "106", "flags": ["avx", "sse2"]}
    assert hardware.cpu_model(arm) == {"implementer": "0x41", "part": "0xd4f", "flags": ["asimd", "fp", "sve"]}


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC: 12.2.0\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (builder)\n",
    ],
)
def test_the_driver_s_version_is_read_from_either_kernel_module(text: str) -> None:
    assert hardware.driver(text) == "580.95.05"


# Boundaries


def _imports(path: Path) -> set[str]:
    # 3.10 is the oldest Python a stack may bring.
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sorted((REPOSITORY / "harness" / "cell").glob("*.py")), ids=lambda path: path.name)
def test_the_cell_s_half_imports_nothing_but_itself_numpy_and_the_standard_library(path: Path) -> None:
    for name in _imports(path):
        top = name.partition(".")[0]
        assert name.startswith("harness.cell.") or top == "numpy" or top in sys.stdlib_module_names, name


@pytest.mark.parametrize(
    "path",
    sorted([*(REPOSITORY / "kernels").glob("*/op.py"), *(REPOSITORY / "kernels").glob("*/candidates/*.py")]),
    ids=lambda path: path.stem,
)
def test_an_op_folder_imports_no_more_of_the_harness_than_the_op_s_vocabulary(path: Path) -> None:
    assert all(name.startswith("harness.cell.op.") for name in _imports(path) if name.startswith("harness"))
