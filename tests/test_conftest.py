"""The guard against silent skips can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = """
import pytest
def test_by_call(): pytest.skip("why not")
@pytest.mark.skip
def test_by_mark(): pass
def test_runs(): pass
"""
WHOLE_FILE = "import pytest\npytest.skip('all of it', allow_module_level=True)\n"
CLEAN = "def test_runs(): pass\n"
WARNING = "import warnings\ndef test_warns(): warnings.warn('old')\n"


def session(root: Path, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Run test files of its own under this folder's conftest.py."""
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += [f"--rootdir={folder}", "-c", str(root / "pyproject.toml"), str(folder)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_an_uncounted_skip_fails_the_session(root: Path, tmp_path: Path) -> None:
    done = session(root, tmp_path, SKIPS, WHOLE_FILE)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    skipped = "test_0.py::test_by_call, test_0.py::test_by_mark, test_1.py"
    assert f"expected 0 skipped tests (tests/conftest.py), got: {skipped}" in done.stdout
    assert "1 passed, 3 skipped" in done.stdout


def test_a_session_without_skips_passes(root: Path, tmp_path: Path) -> None:
    done = session(root, tmp_path, CLEAN)
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_warning_is_an_error(root: Path, tmp_path: Path) -> None:
    assert session(root, tmp_path, WARNING).returncode == pytest.ExitCode.TESTS_FAILED
