"""What runs where, and the promise that nothing is skipped in silence.

Tests marked `gpu` are left out where there is no GPU, tests marked `gpus(2)` where there are fewer,
tests marked `network` where GMA_OFFLINE=1, tests marked `torch` where there is no CUDA build of
torch, tests marked `traces` where the five larger recorded traces are not at hand
(GPUMEM_ALLOC_TRACES), tests marked `library` where theirs is not installed; the report's head says
so, and in CI that is an error for network and torch. A test that skips itself must be counted
below, or the session fails.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How many tests skip themselves in a whole run. Change it in the commit that adds the skip.
EXPECTED_SKIPS_WITHOUT_GPU = 0
EXPECTED_SKIPS_WITH_GPU = 0

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for the helpers in tests/; what is installed goes first

from tests.recorded import HAS_TRACES  # noqa: E402
from tests.rig.machine import Machine  # noqa: E402

HAS_GPU = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
CARDS = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
GPU_COUNT = len(CARDS) or int(HAS_GPU)
_TORCH = importlib.util.find_spec("torch")
HAS_TORCH = any(
    (Path(place) / "lib" / "libtorch_cuda.so").exists()
    for place in (_TORCH.submodule_search_locations or [] if _TORCH else [])
)
LIBRARIES = ("torchvision", "transformers")  # of tests marked `library`
MISSING = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
OFFLINE = os.environ.get("GMA_OFFLINE", "0") == "1"


# Examples for each property; GMA_EXAMPLES=20000 for a night. No deadline: tests measure no time.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=500, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
if "GMA_EXAMPLES" in os.environ:
    settings.register_profile("asked", max_examples=int(os.environ["GMA_EXAMPLES"]), deadline=None)
    settings.load_profile("asked")


class SkipCounter:
    """Counts skips and left-out tests; turns an unexpected number into a failed session."""

    def __init__(self, whole_run: bool) -> None:
        self.whole_run = whole_run
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        expected = EXPECTED_SKIPS_WITH_GPU if HAS_GPU else EXPECTED_SKIPS_WITHOUT_GPU
        unexpected = len(self.skipped) > expected or (
            self.whole_run and len(self.skipped) != expected
        )
        quiet = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if unexpected and session.exitstatus in quiet:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.complain(session.config, expected)

    def complain(self, config: pytest.Config, expected: int) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            names = ", ".join(sorted(self.skipped)) or "none"
            reporter.write_line("")
            reporter.write_line(
                f"expected {expected} skipped tests (tests/conftest.py), got: {names}", red=True
            )


def pytest_configure(config: pytest.Config) -> None:
    markers = config.getoption("markexpr", "")
    if "gpu" in markers and "not gpu" not in markers and not HAS_GPU:
        raise pytest.UsageError("-m gpu was asked for, and this machine has no GPU")
    if os.environ.get("CI") and (OFFLINE or not HAS_TORCH):
        raise pytest.UsageError("in CI the tests marked network and torch must run")
    whole_run = (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not markers
        and not config.getoption("keyword", "")
    )
    config.pluginmanager.register(SkipCounter(whole_run), "skip-counter")


def pytest_report_header() -> str:
    absences = (
        ("gpu", not HAS_GPU),
        ("gpus(2)", GPU_COUNT < 2),
        ("network", OFFLINE),
        ("torch", not HAS_TORCH),
        ("traces", not HAS_TRACES),
        *((f"library({name})", name in MISSING) for name in LIBRARIES),
    )
    left_out = [name for name, absent in absences if absent]
    return f"left out on this machine: tests marked {', '.join(left_out) or 'nothing'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def belongs(item: pytest.Item) -> bool:
        no_gpu = item.get_closest_marker("gpu") is not None and not HAS_GPU
        few_gpus = any(mark.args[0] > GPU_COUNT for mark in item.iter_markers("gpus"))
        no_network = item.get_closest_marker("network") is not None and OFFLINE
        no_torch = item.get_closest_marker("torch") is not None and not HAS_TORCH
        no_traces = item.get_closest_marker("traces") is not None and not HAS_TRACES
        asked = {name for mark in item.iter_markers("library") for name in mark.args}
        assert asked <= set(LIBRARIES), asked
        absent = no_gpu or few_gpus or no_network or no_torch or no_traces
        return not (absent or asked & set(MISSING))

    left_out = [item for item in items if not belongs(item)]
    items[:] = [item for item in items if belongs(item)]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session", params=["rig", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine with a card: the stand-in everywhere, the real one with `-m gpu`."""
    made = Machine(request.param)
    yield made
    made.close()


TWO_CARDS = [
    pytest.param("rig", id="two on the rig"),
    pytest.param("gpu", id="two gpus", marks=[pytest.mark.gpu, pytest.mark.gpus(2)]),
]


@pytest.fixture(scope="session", params=TWO_CARDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine with two cards: the stand-in everywhere, the real one where it has two."""
    made = Machine(request.param, door="bridge", settings={"RIG_DEVICES": "2"})
    yield made
    made.close()


@pytest.fixture(scope="session")
def rig() -> Iterator[Machine]:
    """The stand-in card alone, for what a real one cannot be told to do."""
    made = Machine("rig")
    yield made
    made.close()


@pytest.fixture(scope="session")
def gpu() -> Iterator[Machine]:
    """The real card alone, for what needs kernels; tests that use it are marked `gpu`."""
    made = Machine("gpu")
    yield made
    made.close()


@pytest.fixture(scope="session")
def bridge() -> Path:
    """The bridge to the installed torch, built if need be; tests that use it are marked `torch`."""
    command = [sys.executable, "-m", "gpumem_alloc", "bridge", "build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session", params=["rig", pytest.param("gpu", marks=pytest.mark.gpu)])
def bridged(request: pytest.FixtureRequest, bridge: Path) -> Iterator[Machine]:
    """As `machine`, and enable() takes the bridge there."""
    assert bridge.is_file()
    made = Machine(request.param, door="bridge")
    yield made
    made.close()
