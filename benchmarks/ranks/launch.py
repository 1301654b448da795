"""Starts the ranks of one host and gathers their rows.

    rows = run(["ddp", "fsdp"], "paged", count=2)

Ranks talk over the loopback interface alone. NVLink multicast stays off. A rank that fails, or that
says nothing for too long, ends the others; what has not run then is started anew, without the
program at which it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from ..workers.children import command, import_path
from ..workers.process import child_environment
from .program import Figures
from .worker import CPU

SECONDS = 120.0  # from a row to the next one
LAST_SECONDS = 5.0  # for the others' last words
LAST_LINES = 30
ALWAYS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def run(
    programs: Sequence[str],
    allocator: str,
    count: int,
    *,
    backend: str = "nccl",
    steps: int | None = None,
    seconds: float = SECONDS,
    environment: Mapping[str, str] | None = None,
    of_rank: Mapping[int, Mapping[str, str]] | None = None,
) -> list[Figures]:
    """Run programs on `count` ranks; a row for each program and rank, `error` in what failed.

    `environment` is added to that of all ranks, `of_rank` to that of some.
    """
    rows: list[Figures] = []
    left = list(programs)
    while left:
        words = [*left, "--allocator", allocator, "--backend", backend]
        words += [] if steps is None else ["--steps", str(steps)]
        with _Ranks(words, allocator, count, environment or {}, of_rank or {}) as ranks:
            found = ranks.gather(len(left) * count, seconds)
        said = {(row["program"], row["rank"]): row for row in found}
        failed = next(
            (
                name
                for name in left
                if any("error" in said.get((name, rank), {"error": ""}) for rank in range(count))
            ),
            None,
        )
        done = left if failed is None else left[: left.index(failed) + 1]
        for name in done:
            for rank in range(count):
                silent = {"error": f"no row: {ranks.last_words(rank)}"}
                head = {"program": name, "allocator": allocator, "rank": rank, "ranks": count}
                rows.append(head | said.get((name, rank), silent))
        left = left[len(done) :]
    return rows


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Ranks:
    """The processes of one start."""

    def __init__(
        self,
        words: list[str],
        allocator: str,
        count: int,
        environment: Mapping[str, str],
        of_rank: Mapping[int, Mapping[str, str]],
    ) -> None:
        base = dict(os.environ) if allocator == CPU else child_environment(allocator)
        base |= {**ALWAYS, "PYTHONPATH": import_path(), "WORLD_SIZE": str(count)}
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environment}
        self._rows: queue.SimpleQueue[Figures | int] = queue.SimpleQueue()
        self._words = [deque[str](maxlen=LAST_LINES) for _ in range(count)]
        self._children = [
            subprocess.Popen(
                command("ranks.worker", *words),
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank), **of_rank.get(rank, {})},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, errors="replace", start_new_session=True,
            )
            for rank in range(count)
        ]  # fmt: skip
        for rank, child in enumerate(self._children):
            assert child.stdout is not None
            assert child.stderr is not None
            threading.Thread(target=self._read, args=(rank, child.stdout), daemon=True).start()
            threading.Thread(target=self._keep, args=(rank, child.stderr), daemon=True).start()

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left of them, with what it has started."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def gather(self, count: int, seconds: float) -> list[Figures]:
        """Return rows until there are `count`, one has failed, or nothing comes."""
        found: list[Figures] = []
        ended = 0
        deadline = time.monotonic() + seconds
        while ended < len(self._children) and time.monotonic() < deadline:
            try:
                said = self._rows.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(said, int):
                ended += 1
            else:
                found.append(said)
                deadline = time.monotonic() + seconds
            is_failed = isinstance(said, dict) and "error" in said
            is_early = isinstance(said, int) and len(found) < count
            if is_failed or is_early:
                deadline = min(deadline, time.monotonic() + LAST_SECONDS)
        return found

    def last_words(self, rank: int) -> str:
        """Return what a rank wrote to stderr last, in one line, and how it ended."""
        code = self._children[rank].returncode
        lines = [line.strip() for line in list(self._words[rank]) if line.strip()]
        return f"exit code {code}: {' | '.join(lines[-6:])}"[:1200]

    def _read(self, rank: int, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                if line.startswith("ROW "):
                    self._rows.put(json.loads(line[4:]))
        self._rows.put(rank)

    def _keep(self, rank: int, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._words[rank].append(line)
