"""Runs snippets of Python on a stand-in card, or on the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gpumem_alloc
from tests.rig.build import build

_HERE = Path(__file__).resolve().parent
_PACKAGE_FOLDER = Path(gpumem_alloc.__file__).resolve().parent.parent  # snippets use the same one


@dataclass(frozen=True)
class Run:
    """What a snippet did."""

    returncode: int
    stdout: str
    stderr: str


class Machine:
    """A machine, `rig` or `gpu`, with a process that has torch imported (zygote.py).

    `door` is what enable() takes there by itself, `settings` are variables of the stand-in.
    """

    def __init__(
        self, kind: str, door: str = "stock", settings: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.door = door
        self.settings = dict(settings or {})
        self._zygote: subprocess.Popen[str] | None = None
        self._count = 0
        self._folder = tempfile.TemporaryDirectory(prefix="gpumem_alloc-machine-")

    def run(self, code: str, *, check: bool = True, env: Mapping[str, str] | None = None) -> Run:
        """Run `code` as a program in a process of its own; with `check`, fail if it does."""
        self._count += 1
        paths = {
            name: str(Path(self._folder.name) / f"{self._count}-{name}")
            for name in ("code", "stdout", "stderr")
        }
        Path(paths["code"]).write_text(textwrap.dedent(code))
        request = json.dumps({**paths, "env": dict(env or {})})
        zygote = self._running()
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdin.write(request + "\n")
        zygote.stdin.flush()
        answer = json.loads(zygote.stdout.readline())
        output = {name: Path(paths[name]).read_text() for name in ("stdout", "stderr")}
        return self._checked(Run(answer["returncode"], **output), check)

    def run_fresh(
        self, code: str, *, check: bool = True, env: Mapping[str, str] | None = None
    ) -> Run:
        """Run `code` in an interpreter of its own, import of torch and all."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**self.environment(), **(env or {})},
            capture_output=True, text=True, check=False, timeout=300, cwd=self._folder.name,
        )  # fmt: skip
        return self._checked(Run(done.returncode, done.stdout, done.stderr), check)

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.communicate(timeout=60)  # closes its stdin, which ends it
        self._folder.cleanup()

    def _checked(self, run: Run, check: bool) -> Run:
        if check and run.returncode != 0:
            raise AssertionError(f"exit code {run.returncode}\n{run.stdout}\n{run.stderr}")
        return run

    def _running(self) -> subprocess.Popen[str]:
        if self._zygote is None or self._zygote.poll() is not None:
            self._zygote = subprocess.Popen(
                [sys.executable, str(_HERE / "zygote.py")],
                env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        return self._zygote

    def environment(self) -> dict[str, str]:
        """What a process needs to run on this machine, and nothing of the user's settings."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RIG_", "GPUMEM_ALLOC", "PYTORCH_"))
            or name == "GPUMEM_ALLOC_CACHE"
        }
        clean["GMA_TEST_MACHINE"] = self.kind
        clean["GPUMEM_ALLOC_DOOR"] = self.door
        clean["GPUMEM_ALLOC_LEDGER"] = "off"  # no reports of faults that a test wants
        clean["PYTHONPATH"] = os.pathsep.join(
            [str(_HERE), str(_PACKAGE_FOLDER), *filter(None, [clean.get("PYTHONPATH")])]
        )
        if self.kind == "rig":
            rig = build()
            clean |= self.settings
            clean["LD_PRELOAD"] = str(rig.preload)
            library_path = clean.get("LD_LIBRARY_PATH", "")
            clean["LD_LIBRARY_PATH"] = os.pathsep.join(
                filter(None, [str(rig.folder), library_path])
            )
        return clean
