"""Programs of ours with real mistakes (tests/gpu/known_bugs): each level finds what it says.

Without a card their kernels are compiled, and the programs run natively on the stand-in card, whose
kernels run on the CPU: the twins are right, and no mistake is noticed. With one, each runs under
`native` and under the levels that find something.
"""

from __future__ import annotations

import inspect
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.known_bugs import document, host, nvrtc, runner
from tests.gpu.known_bugs.kernels import signatures
from tests.gpu.known_bugs.runner import Observation, Runner, difference
from tests.gpu.known_bugs.table import GROUPS, LEVELS, Case, Level, cases, source
from tests.rig.machine import Machine, Run

ROOT = Path(__file__).resolve().parent.parent
ON_CARD: tuple[Level, ...] = ("native", "packed", "tensor", "strict")


def launched(case: Case) -> list[str]:
    """The kernels that a case, or a class beside it, launches."""
    module = inspect.getmodule(case.run)
    assert module is not None
    text = inspect.getsource(case.run)
    helpers = [name for name in re.findall(r"\b(\w+)\(", text) if hasattr(module, name)]
    texts = [
        text,
        *(inspect.getsource(getattr(module, name)) for name in set(helpers) - {"Result"}),
    ]
    return re.findall(r'kernels\.launch\(\s*"(\w+)"', "\n".join(texts))


def test_every_case_says_what_each_level_finds() -> None:
    assert len(cases()) >= 20
    for name, case in cases().items():
        assert tuple(case.found) == LEVELS, name
        assert case.found["strict"] == "always", name
        assert case.group in GROUPS, name
        assert re.fullmatch(r"[a-z_]\S* .*[^.]", case.mistake), name
        # What the hardware or a pattern finds, a stronger level finds too.
        order = ("never", "sometimes", "always")
        ranks = [order.index(case.found[level]) for level in LEVELS]
        assert ranks == sorted(ranks), name
    assert {case.signal for case in cases().values()} == {"fault", "violation", "poison"}


def test_every_mistake_is_in_a_kernel_that_is_launched_or_in_the_program() -> None:
    for name, case in cases().items():
        kernels = {
            kernel.partition("(")[0]: kernel
            for kernel in source(case.group).split('extern "C" __global__ void ')[1:]
        }
        in_kernel = any("WRONG" in kernels[kernel] for kernel in launched(case))
        body = inspect.getsource(case.run).partition(":\n")[2]
        assert in_kernel != bool(re.search(r"\bwrong\b", body)), name


@pytest.mark.torch
@pytest.mark.parametrize("wrong", [True, False], ids=["wrong", "right"])
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_compile_for_a_card(group: str, wrong: bool) -> None:
    cubin = nvrtc.compile_source(source(group), wrong, "sm_90")
    assert cubin.startswith(b"\x7fELF")
    assert signatures(source(group))
    assert all(name.encode() in cubin for name in signatures(source(group)))


@pytest.mark.torch
def test_a_mistake_in_the_source_is_told_as_the_compiler_says_it() -> None:
    with pytest.raises(nvrtc.CudaError, match='identifier "nowhere" is undefined'):
        nvrtc.compile_source('extern "C" __global__ void f(int* x) { nowhere = 1; }', True, "sm_90")


@pytest.mark.torch
def test_natively_the_twins_are_right_and_no_mistake_is_noticed(
    rig: Machine, tmp_path: Path
) -> None:
    done = rig.run(f"""
        import sys
        sys.path.append({str(ROOT)!r})
        from pathlib import Path
        from tests.gpu.known_bugs import child
        child.compile_all(Path({str(tmp_path)!r}))
        child.native_on_rig(Path({str(tmp_path)!r}))
    """)
    seen = [Observation(**json.loads(line)) for line in done.stdout.splitlines()]
    assert {(each.case, each.wrong) for each in seen} == {
        (name, wrong) for name in cases() for wrong in (True, False)
    }
    assert [text for each in seen if (text := difference(cases()[each.case], each, "rig"))] == []
    assert [each for each in seen if each.outcome not in ("nothing", "wrong result")] == []
    # The mistakes are real: most of them come out in the result here.
    assert sum(each.outcome == "wrong result" for each in seen) >= 10


def test_a_kernel_runs_on_the_cpu_over_the_whole_grid(tmp_path: Path) -> None:
    text = """
    extern "C" __global__ void number(int* out, int columns) {
        const int x = blockIdx.x * blockDim.x + threadIdx.x;
        const int y = blockIdx.y * blockDim.y + threadIdx.y;
        out[y * columns + x] += 1 + WRONG;
    }
    """
    import ctypes

    host.compile_library(text, True, tmp_path / "kernels")
    out = (ctypes.c_int * 24)()
    arguments = [ctypes.c_void_p(ctypes.addressof(out)), ctypes.c_int(6)]
    host.HostModule(tmp_path / "kernels").launch("number", (2, 2), (3, 2), arguments)
    assert list(out) == [2] * 24


SOME = "shared_workspace_too_small"  # strict: fault; packed: always; native: never


@pytest.mark.parametrize(
    ("name", "level", "wrong", "outcome", "said"),
    [
        (SOME, "strict", True, "fault", ""),
        (SOME, "strict", True, "violation", "not fault"),
        (SOME, "strict", True, "nothing", "not fault"),
        (SOME, "tensor", True, "violation", ""),
        (SOME, "packed", True, "violation", ""),
        (SOME, "packed", True, "wrong result", "always found"),
        (SOME, "native", True, "wrong result", ""),
        (SOME, "native", True, "fault", "never found"),
        (SOME, "native", True, "error", "error"),
        (SOME, "packed", False, "nothing", ""),
        (SOME, "packed", False, "violation", "nothing is wrong with it"),
        (SOME, "native", False, "wrong result", "nothing is wrong with it"),
        ("shift_writes_before", "packed", True, "nothing", ""),
        ("shift_writes_before", "packed", True, "violation", ""),
    ],
)
def test_the_judge_sees_what_differs(
    name: str, level: Level, wrong: bool, outcome: str, said: str
) -> None:
    found = difference(cases()[name], Observation(name, level, wrong, outcome, ""))
    assert (said in found) if said else (found == "")


@pytest.mark.parametrize(
    ("kind", "run", "outcome"),
    [
        ("rig", Run(-signal.SIGSEGV, "", ""), "fault"),
        ("gpu", Run(-signal.SIGSEGV, "", ""), "error"),
        ("gpu", Run(-signal.SIGALRM, "", ""), "error"),
        ("gpu", Run(0, "noise\n", ""), "error"),
        (
            "gpu",
            Run(
                0,
                f'noise\n{{"case": "{SOME}", "level": "strict", "wrong": true,'
                ' "outcome": "fault", "detail": ""}\n',
                "",
            ),
            "fault",
        ),
    ],
)
def test_a_process_that_ends_without_its_line_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, run: Run, outcome: str
) -> None:
    class Fake:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def run(self, code: str, check: bool) -> Run:
            return run

        def close(self) -> None: ...

    monkeypatch.setattr(runner, "Machine", Fake)
    with Runner(kind, at_once=1) as few:
        assert few.submit(cases()[SOME], "strict", True).result().outcome == outcome


def test_the_document_is_current() -> None:
    command = "python -m tests.gpu.known_bugs --write"
    assert document.DOCUMENT.read_text() == document.page(), f"run: {command}"
    assert command in document.page()


Begun = dict[str, list[Future[Observation]]]


@pytest.fixture(scope="module")
def begun(request: pytest.FixtureRequest, bridge: Path) -> Iterator[Begun]:
    """Starts what this module's tests ask for; a test waits for its own."""
    assert bridge.is_file()
    wanted = {
        call.params["case"].name
        for item in request.session.items
        if (call := getattr(item, "callspec", None)) and isinstance(call.params.get("case"), Case)
    }
    with Runner("gpu") as many:
        yield {
            name: [many.submit(case, level, twin) for level in ON_CARD for twin in (True, False)]
            for name, case in cases().items()
            if name in wanted
        }


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases().items()])
def test_each_level_finds_what_it_says_and_nothing_in_the_twin(begun: Begun, case: Case) -> None:
    seen = [each.result() for each in begun[case.name]]
    differences = [text for each in seen if (text := difference(case, each))]
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)
