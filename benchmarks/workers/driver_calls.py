"""Counts the driver's memory calls and synchronisations in this process, through CUPTI.

    driver = DriverCalls.build()      # compiles driver_calls.cpp; None, and a line, if it cannot
    driver.start()                    # before CUDA starts
    with driver.step_ends():          # at the end of each step; calls in here do not count
        torch.cuda.synchronize()
    driver.figures()

All allocators are counted alike: a cudaMalloc shows as the driver's call inside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADER = "cupti_callbacks.h"
LIBRARY_MAJORS = (13, 12)
SYNCHRONISATIONS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
STARTED, REFUSED = 0, 2  # of driver_calls_start()
MEMORY = "cuMem"  # what the names of calls for memory begin with


def _wheels_folders(pattern: str) -> list[Path]:
    """Folders of the nvidia wheels, then of triton, which carries CUPTI for itself."""
    found: list[Path] = []
    for package, below in (("nvidia", f"*/{pattern}"), ("triton", f"backends/nvidia/{pattern}")):
        spec = importlib.util.find_spec(package)
        for place in list(spec.submodule_search_locations or []) if spec else []:
            found += sorted(Path(place).glob(below))
    return found


def _toolkits() -> list[Path]:
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    return [Path(home) for home in [*filter(None, named), "/usr/local/cuda"]]


def include_folders() -> list[Path]:
    """Return the folders to compile with: CUPTI's headers, then CUDA's beside them.

    Raises FileNotFoundError where CUPTI's are not to be found.
    """
    toolkits = _toolkits()
    candidates = [home / "extras" / "CUPTI" / "include" for home in toolkits]
    candidates += [home / "include" for home in toolkits]
    candidates += _wheels_folders("include")
    with_cupti = [folder for folder in candidates if (folder / HEADER).is_file()]
    if not with_cupti:
        raise FileNotFoundError(f"no {HEADER} in a CUDA toolkit or in triton's folder")
    complete = [folder for folder in candidates if (folder / "crt" / "host_defines.h").is_file()]
    return list(dict.fromkeys([with_cupti[0], *complete[:1]]))


def library_names() -> list[str]:
    """Return libcupti's names, best first: what this process has loaded, then others."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    words = [line.split()[-1] for line in maps.splitlines() if "/libcupti.so" in line]
    names = [*words, *(f"libcupti.so.{major}" for major in LIBRARY_MAJORS)]
    folders = [home / "extras" / "CUPTI" / "lib64" for home in _toolkits()]
    for folder in [*folders, *_wheels_folders("lib"), *_wheels_folders("lib/cupti*")]:
        names += [str(path) for path in sorted(folder.glob("libcupti.so.[0-9]*"))]
    return list(dict.fromkeys(names))


def compile_counter(folder: Path) -> Path:
    """Compile driver_calls.cpp. Raises OSError or CalledProcessError if it cannot be."""
    library = folder / "driver_calls.so"
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O2", "-fPIC", "-shared", str(HERE / "driver_calls.cpp")),
            *(f"-isystem{include}" for include in include_folders()),
            *("-o", str(library), "-ldl"),
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return library


class DriverCalls:
    """One for a process."""

    def __init__(self, library: Path) -> None:
        self._calls: Any = ctypes.CDLL(str(library))
        self._calls.driver_calls_problem.restype = ctypes.c_char_p
        self._calls.driver_calls_name.restype = ctypes.c_char_p
        count = self._calls.driver_calls_count()
        self._names = [self._calls.driver_calls_name(index).decode() for index in range(count)]
        self._steps: list[tuple[int, int]] = []  # memory calls and their ns until each step's end

    @classmethod
    def build(cls) -> DriverCalls | None:
        """Compile and load; None, with one line on stderr, where that cannot be done."""
        try:
            with tempfile.TemporaryDirectory(prefix="driver_calls-") as folder:
                return cls(compile_counter(Path(folder)))
        except subprocess.CalledProcessError as error:
            _complain(f"g++ said: {' '.join(error.stderr.split()[:60])}")
        except OSError as error:
            _complain(str(error))
        return None

    def start(self, names: list[str] | None = None) -> bool:
        """Count from here on; False, with one line on stderr, where CUPTI will not."""
        problems = []
        for name in library_names() if names is None else names:
            answer = self._calls.driver_calls_start(name.encode())
            if answer == STARTED:
                return True
            problems.append(f"{Path(name).name}: {self._calls.driver_calls_problem().decode()}")
            if answer == REFUSED:  # another one would not do better, and two disturb each other
                break
        _complain("; ".join(problems))
        return False

    @contextlib.contextmanager
    def step_ends(self) -> Iterator[None]:
        """Note what the step came to; this thread's calls inside do not count."""
        self._calls.driver_calls_pause()
        try:
            yield
            self._steps.append(self._memory())
        finally:
            self._calls.driver_calls_resume()

    def figures(self) -> dict[str, Any]:
        """Return the row's field: everything since start(), and memory calls of the second half."""
        calls, ns = self._read()
        half = self._steps[len(self._steps) // 2 - 1] if len(self._steps) > 1 else (0, 0)
        last = self._steps[-1] if self._steps else self._memory()
        return {
            "calls": {name: each for name, each in calls.items() if each},
            "ms": {name: round(ns[name] / 1e6, 4) for name, each in calls.items() if each},
            "second_half_calls": last[0] - half[0],
            "second_half_ms": round((last[1] - half[1]) / 1e6, 4),
            "synchronisations": sum(calls[name] for name in SYNCHRONISATIONS),
        }

    def _read(self) -> tuple[dict[str, int], dict[str, int]]:
        numbers = ctypes.c_uint64 * len(self._names)
        calls, ns = numbers(), numbers()
        self._calls.driver_calls_read(calls, ns)
        return dict(zip(self._names, calls, strict=True)), dict(zip(self._names, ns, strict=True))

    def _memory(self) -> tuple[int, int]:
        calls, ns = self._read()
        names = [name for name in self._names if name.startswith(MEMORY)]
        return sum(calls[name] for name in names), sum(ns[name] for name in names)


def _complain(why: str) -> None:
    print(f"driver calls: not counted: {why}", file=sys.stderr)
