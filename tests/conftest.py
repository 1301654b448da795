"""What runs where, and the promise that nothing is skipped in silence.

Tests marked `gpu` are left out where there is no GPU, tests marked `network` where GMA_OFFLINE=1;
the report's head says so. A test that skips itself must be counted below, or the session fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# How many tests skip themselves in a whole run. Change it in the commit that adds the skip.
EXPECTED_SKIPS_WITHOUT_GPU = 0
EXPECTED_SKIPS_WITH_GPU = 0

ROOT = Path(__file__).resolve().parent.parent
HAS_GPU = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
OFFLINE = os.environ.get("GMA_OFFLINE", "0") == "1"


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
        if unexpected and session.exitstatus == pytest.ExitCode.OK:
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
    whole_run = (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not markers
        and not config.getoption("keyword", "")
    )
    config.pluginmanager.register(SkipCounter(whole_run), "skip-counter")


def pytest_report_header() -> str:
    left_out = [name for name, absent in (("gpu", not HAS_GPU), ("network", OFFLINE)) if absent]
    return f"left out on this machine: tests marked {', '.join(left_out) or 'nothing'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def belongs(item: pytest.Item) -> bool:
        no_gpu = item.get_closest_marker("gpu") is not None and not HAS_GPU
        no_network = item.get_closest_marker("network") is not None and OFFLINE
        return not (no_gpu or no_network)

    left_out = [item for item in items if not belongs(item)]
    items[:] = [item for item in items if belongs(item)]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
