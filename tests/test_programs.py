"""Small real programs give the same results with PyTorch's allocator and with ours.

Each of tests/programs runs in processes of its own: twice with native, once through the bridge, all
with equal seeds. What the two native runs agree on, ours must give exactly; where they differ, its
numbers must be as close as the program's TOLERANCE says. It must end with exit code 0, and print
nothing on stderr that native does not print.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import runner
from tests.rig.machine import Machine

ROOT = Path(__file__).resolve().parent.parent
# The longest first, since several run at once.
PROGRAMS = (
    "compiled_graphs",
    "compiled",
    "out_of_memory",
    "mask_rcnn",
    "processes",
    "hf_generate",
    "hf_training",
    "data_loader",
    "cudnn_benchmark",
    "graphed_callables",
    "profiler_memory",
    "checkpointing",
    "mixed_precision",
    "oom_training",
)
RUNS = ("native", "native", "bridge")
AT_ONCE = max(1, min(6, (os.cpu_count() or 2) // 2))
RUN_SECONDS = 170


@dataclass(frozen=True)
class Outcome:
    """What one process of a program did."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        """What the program found; None if it did not get there."""
        lines = [line for line in self.stdout.splitlines() if line.startswith("RESULT ")]
        return json.loads(lines[-1][7:]) if len(lines) == 1 else None

    def failure(self) -> str:
        """Say what went wrong; "" if it ran to its end."""
        if self.returncode == 0 and self.result is not None:
            return ""
        return f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}"


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's settings, nothing from the network, nothing that another run compiled.

    What a compiler tunes by timing allocates, and a later run that finds the result does not.
    """
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUMEM_ALLOC", "PYTORCH_", "TORCH"))
    }
    return clean | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [clean.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
    }


def run(program: str, allocator: str, folder: Path) -> Outcome:
    """Run one program in a process and a folder of its own."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.programs.runner", program, allocator]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment(folder), capture_output=True, text=True,
            check=False, timeout=RUN_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return Outcome(124, "", f"no end after {RUN_SECONDS} s\n{late.stderr!r}")
    return Outcome(done.returncode, done.stdout, done.stderr)


Started = dict[str, list[Future[Outcome]]]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """Starts the programs of this session's tests; a test waits for its own."""
    folder = tmp_path_factory.mktemp("programs")
    wanted = [
        program
        for program in PROGRAMS
        if any(
            item.name == f"test_a_program_cannot_tell[{program}]" for item in request.session.items
        )
    ]
    # Once, and not in each process while it is waited for.
    built = subprocess.run(
        [sys.executable, "-m", "gpumem_alloc", "bridge", "build"],
        env=environment(folder), cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            program: [
                pool.submit(run, program, allocator, folder / f"{program}-{number}")
                for number, allocator in enumerate(RUNS)
            ]
            for program in wanted
        }


def cases() -> list[Any]:
    """Every program, marked with the libraries it needs."""
    return [
        pytest.param(
            program,
            marks=[pytest.mark.library(name) for name in runner.load(program).LIBRARIES],
        )
        for program in PROGRAMS
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("program", cases())
def test_a_program_cannot_tell(outcomes: Started, program: str) -> None:
    first, second, ours = (future.result() for future in outcomes[program])
    for native in (first, second):
        assert not (failure := native.failure()), f"native itself fails here: {failure}"
    assert not (failure := ours.failure()), failure
    assert differences(runner.load(program), (first.result, second.result), ours.result) == []
    assert new_lines(ours.stderr, first.stderr + second.stderr) == []


def differences(program: Any, natives: tuple[Any, Any], ours: Any, where: str = "") -> list[str]:
    """List where our result is not what native's two runs call for."""
    first, second = natives
    kinds = {type(first), type(second)}
    if kinds == {dict} and isinstance(ours, dict):
        if set(first) == set(second) != set(ours):
            return [f"{where}: {sorted(ours)}, native has {sorted(first)}"]
        parts = [(name, first[name], second.get(name), ours.get(name)) for name in sorted(first)]
    elif kinds == {list} and isinstance(ours, list):
        if len(first) == len(second) != len(ours):
            return [f"{where}: {len(ours)} of them, native has {len(first)}"]
        parts = [(str(at), *each) for at, each in enumerate(zip(first, second, ours, strict=False))]
    elif alike(program, first, second, ours):
        return []
    else:
        return [f"{where}: {ours!r}, native has {first!r} and {second!r}"]
    return [
        line
        for name, one, other, mine in parts
        for line in differences(program, (one, other), mine, f"{where}/{name}")
    ]


def alike(program: Any, first: Any, second: Any, ours: Any) -> bool:
    """Say whether one value of ours is as native's: exactly, where native repeats it."""
    is_number = isinstance(first, float) and isinstance(ours, float)
    if first == second and (runner.setting(program, "REPEATS") or not is_number):
        return bool(first == ours and type(first) is type(ours))
    if not is_number:
        return True  # native does not know either
    allowed = runner.setting(program, "TOLERANCE") * max(abs(first), 1e-6)
    return bool(abs(ours - first) <= allowed + 2 * abs(first - second))


def new_lines(ours: str, native: str) -> list[str]:
    """List what only ours prints, whatever the numbers and temporary files in it."""

    def plain(line: str) -> str:
        return re.sub(r"0x[0-9a-f]+|\d+", "#", re.sub(r"/tmp/\S+", "/tmp", line)).strip()

    known = {plain(line) for line in native.splitlines()} | {""}
    return [line for line in ours.splitlines() if plain(line) not in known]


class Exact:
    """A program with the usual settings."""


class Loose:
    """A program whose kernels are chosen anew each time."""

    REPEATS = False
    TOLERANCE = 0.1


@pytest.mark.parametrize(
    ("program", "first", "second", "ours", "count"),
    [
        (Exact, {"a": [1.0, 2]}, {"a": [1.0, 2]}, {"a": [1.0, 2]}, 0),
        (Exact, {"a": [1.0, 2]}, {"a": [1.0, 2]}, {"a": [1.0000001, 3]}, 2),
        (Exact, {"a": [1.0]}, {"a": [1.0001]}, {"a": [1.001]}, 0),  # native differs from itself
        (Exact, {"a": [1.0]}, {"a": [1.0001]}, {"a": [1.01]}, 1),
        (Exact, {"a": 5}, {"a": 6}, {"a": 9}, 0),
        (Exact, {"a": 1}, {"a": 1}, {"a": True}, 1),
        (Exact, {"a": 1}, {"a": 1}, {}, 1),
        (Exact, {"a": [1]}, {"a": [1]}, {"a": []}, 1),
        (Exact, {"a": [1]}, {"a": [1]}, {"a": None}, 1),
        (Loose, {"a": 1.0, "b": 5}, {"a": 1.0, "b": 5}, {"a": 1.05, "b": 5}, 0),
        (Loose, {"a": 1.0, "b": 5}, {"a": 1.0, "b": 5}, {"a": 1.2, "b": 6}, 2),
    ],
)
def test_differences_are_found(
    program: Any, first: Any, second: Any, ours: Any, count: int
) -> None:
    assert len(differences(program, (first, second), ours)) == count


def test_new_lines_are_found() -> None:
    native = "W1 12:00 at 0xab: warning 3\n  indented\n"
    assert new_lines("W2 13:07 at 0xcd: warning 4\nindented\n\n", native) == []
    assert new_lines("W2 13:07 at 0xcd: warning 4\nsomething else\n", native) == ["something else"]


def test_every_program_is_listed() -> None:
    shared = {"runner", "training"}
    files = {path.stem for path in (ROOT / "tests" / "programs").glob("*.py")}
    assert files - shared == set(PROGRAMS)


@pytest.mark.torch
@pytest.mark.parametrize("door", ["stock", "bridge"])
def test_libraries_find_what_fits_on_the_stand_in_card(rig: Machine, door: str) -> None:
    found = [
        json.loads(
            rig.run_fresh(
                f"""
                import sys
                sys.path.insert(0, {str(ROOT)!r})
                sys.argv = ["runner", "out_of_memory", {allocator!r}]
                from tests.programs import runner
                runner.main()
                """,
                env={"RIG_CAPACITY_MB": "4096"},
            ).stdout.partition("RESULT ")[2]
        )
        for allocator in ("native", door)
    ]
    assert found[0] == found[1]
    assert found[0]["ours"] == [64, 32, 16, 16]
    assert found[0]["text"]["accelerate"]
    assert found[0]["text"]["lightning"]
