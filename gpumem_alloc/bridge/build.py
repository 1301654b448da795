"""Compiles and links the bridge against one installed torch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gpumem_alloc.bridge import sources, stamps
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts
from gpumem_alloc.bridge.toolchain import Compiler, Toolchain, environment

MODULE = "_bridge"
_MOST_JOBS = 4  # a unit takes up to a GiB of memory
_ERROR = re.compile(r"\berror: |undefined reference|cannot find")
_PASSING = re.compile(r"Killed|No space left|quota exceeded|emory exhausted|Cannot allocate memory")
LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python")
# NDEBUG as in torch's own wheels: c10's inline functions differ without it. The warnings end in the
# log, where a test of ours reads them; nobody's install fails for one.
_FLAGS = (
    "-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
    "-Wall", "-Wextra", "-Wshadow", "-DGMA_AUDIT_EVERY_CALL=0", "-DGMA_SANITIZED=0",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What is compiled, for which torch. Two of the same `source_id` make the same module."""

    facts: TorchFacts
    csrc: Path
    source_id: str

    @property
    def flags(self) -> list[str]:
        """Compiler flags without folders."""
        return [
            *flags(self.facts),
            f'-DGMA_BRIDGE_SOURCE_ID="{self.source_id}"',
            f'-DGMA_BRIDGE_TORCH_VERSION="{self.facts.version}"',
        ]


def flags(facts: TorchFacts) -> list[str]:
    """The flags that the source id covers."""
    return [*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(facts.cxx11_abi)}"]


def recipe(facts: TorchFacts, package: Path, version: str) -> Recipe:
    """Return what this package, in `version`, would compile for a torch.

    Raises BridgeError if the sources are not there.
    """
    csrc = sources.folder(package)
    if not sources.units(csrc):
        raise BridgeError(
            f"the bridge's sources are not in {csrc / sources.UNITS}.",
            "This copy of gpumem_alloc came without them.",
            "Install it anew: python -m pip install --force-reinstall --no-deps gpumem_alloc.",
        )
    return Recipe(facts, csrc, sources.source_id(csrc, [version, *flags(facts)]))


def module_name() -> str:
    """The file name of the module in this Python."""
    return MODULE + str(sysconfig.get_config_var("EXT_SUFFIX"))


def build(made: Recipe, tools: Toolchain, target: Path, log: Path) -> None:
    """Build `target`. Beside it lie object files afterwards; `log` has what the compiler said.

    Raises BridgeError.
    """
    objects = compile_all(made, tools, target.parent, log)
    command = link_command(made.facts, tools, objects, target)
    output = _run(command)
    with log.open("a") as out:
        _note(out, command, output)
    _refuse_failure(made, output, log, "linking it")


def compile_all(made: Recipe, tools: Toolchain, folder: Path, log: Path) -> list[Path]:
    """Compile every unit and the stamp, several at a time; return the objects, made in `folder`.

    Raises BridgeError about the first that failed.
    """
    started = time.monotonic()
    stamp = folder / "stamp.cpp"
    stamp.write_text(stamps.source(made.facts.version, made.source_id))
    units = [*sources.units(made.csrc), stamp]
    objects = [folder / f"{index}-{unit.stem}.o" for index, unit in enumerate(units)]
    compile_one = compile_command(made, tools)
    commands = [
        [*compile_one, "-c", str(unit), "-o", str(made_object)]
        for unit, made_object in zip(units, objects, strict=True)
    ]
    jobs = min(_MOST_JOBS, len(os.sched_getaffinity(0)), len(commands))
    with ThreadPoolExecutor(jobs) as pool:
        outputs = list(pool.map(_run, commands))
    with log.open("w") as out:
        for command, output in zip(commands, outputs, strict=True):
            _note(out, command, output)
        out.write(f"compiled in {time.monotonic() - started:.1f} s\n")
    for unit, output in zip(units, outputs, strict=True):
        _refuse_failure(made, output, log, f"compiling {unit.name}")
    return objects


def compile_command(made: Recipe, tools: Toolchain) -> list[str]:
    """Everything but the file and its object. Headers of others are system headers: no warnings."""
    torch = made.facts.include
    theirs = [torch, torch / "torch/csrc/api/include", *tools.cuda.includes, *tools.python_includes]
    system = [f"-isystem{path}" for path in theirs if path != Path("/usr/include")]
    # The wheels without CUDA have CUDA's headers too, but for one that CMake writes.
    if not (torch / "c10/cuda/impl/cuda_cmake_macros.h").is_file():
        system.append("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
    return [*tools.compiler.command, *made.flags, f"-iquote{made.csrc}", *system]


def link_command(
    facts: TorchFacts, tools: Toolchain, objects: list[Path], target: Path
) -> list[str]:
    """Link to torch's libraries without an rpath: they are loaded already when the bridge is."""
    beside = sorted({facts.lib, tools.cuda.runtime.parent, *facts.root.parent.glob("nvidia/*/lib")})
    return [
        *tools.compiler.command, "-shared", *map(str, objects), "-o", str(target),
        "-Wl,--as-needed", "-Wl,-z,now", f"-L{facts.lib}", *[f"-l{name}" for name in LIBRARIES],
        str(tools.cuda.runtime), *_shared_cxx_runtime(tools.compiler),
        *[f"-Wl,-rpath-link,{path}" for path in beside],
    ]  # fmt: skip


def _shared_cxx_runtime(compiler: Compiler) -> list[str]:
    """The shared C++ runtime by its name: torch's exceptions end in it.

    Some compilers' -lstdc++ finds only the archive. One that does not know the file either gets the
    one that torch has loaded.
    """
    name = "libstdc++.so.6"
    found = _run([*compiler.command, f"-print-file-name={name}"]).text.strip()
    if Path(found).is_absolute():
        return [found]
    mapped = re.search(rf"(/\S*/{re.escape(name)}\S*)$", _maps(), re.MULTILINE)
    return [mapped[1]] if mapped else []


def _maps() -> str:
    return Path("/proc/self/maps").read_text()


@dataclass(frozen=True)
class _Output:
    code: int
    text: str


def _run(command: list[str]) -> _Output:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False, env=environment(),
        )  # fmt: skip
    except OSError as error:
        return _Output(127, f"{command[0]}: {error.strerror or error}\n")
    return _Output(done.returncode, done.stdout)


def _note(out: TextIO, command: list[str], output: _Output) -> None:
    out.write(f"$ {shlex.join(command)}\n{output.text}")


def _refuse_failure(made: Recipe, output: _Output, log: Path, step: str) -> None:
    if output.code == 0:
        return
    lines = [line for line in output.text.splitlines() if _ERROR.search(line)]
    first = (lines or output.text.splitlines()[-1:] or [f"exit code {output.code}"])[0]
    raise BridgeError(
        f"the bridge to torch {made.facts.version} was not built: {step} failed.",
        f"{first.strip()}.",
        f"What the compiler said is in {log}; with that mended run "
        "python -m gpumem_alloc bridge build.",
        may_pass=output.code < 0 or _PASSING.search(output.text) is not None,
    )
