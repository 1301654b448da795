"""Make a virtual environment that has everything `make test` and `make bench` need.

    python3 tools/bootstrap.py VENV EXTRA...
    python3 tools/bootstrap.py --list EXTRA...      only print what the extras ask for

Installs the build requirements, the dependencies and the named extras of pyproject.toml, torch
where none can be imported, and the package itself in editable form. Run again, it only adds what
is missing. Where the interpreter already sees a torch (a GPU machine's image, often without a
network), the environment looks through to that interpreter's packages, so that nothing that is
there is fetched again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The tests run PyTorch's CUDA build over a stand-in for the CUDA runtime.
TORCH = "torch==2.14.1"


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; before Python 3.11 with the parser inside pip."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import pip._vendor.tomli as tomllib
    return dict(tomllib.loads(path.read_text()))


def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return load_toml(ROOT / "pyproject.toml")


def extra_requirements(extras: list[str]) -> list[str]:
    """List what the named extras ask for; an unknown extra raises KeyError."""
    table = project()["project"]["optional-dependencies"]
    return [line for extra in extras for line in table[extra]]


def requirements(extras: list[str]) -> list[str]:
    """List what building, using and (by the extras) testing the package ask for."""
    config = project()
    base: list[str] = config["build-system"]["requires"] + config["project"]["dependencies"]
    return base + extra_requirements(extras)


def can_import(python: Path | str, module: str) -> bool:
    """Say whether an interpreter finds a module, without importing it."""
    query = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", query], check=False).returncode == 0


def make_environment(venv: Path) -> Path:
    """Create the environment if it is not there; return its interpreter."""
    python = venv / "bin" / "python"
    if python.exists():
        return python
    if not can_import(sys.executable, "torch"):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        return python
    # --system-site-packages would skip the packages of an interpreter that is itself in a virtual
    # environment, so the path is written out.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    query = "import sys; print(*[p for p in sys.path if p.endswith('-packages')], sep='\\n')"
    seen = subprocess.run([sys.executable, "-c", query], check=True, capture_output=True, text=True)
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], check=True, capture_output=True, text=True)
    (Path(site.stdout.strip()) / "parent.pth").write_text(seen.stdout)
    return python


def pip(python: Path, *arguments: str) -> None:
    """Run pip; a failure ends this program with the command that failed."""
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    environment = {"CMAKE_ARGS": "-DGMA_WERROR=ON", **os.environ}
    if subprocess.run(command, check=False, env=environment).returncode != 0:
        sys.exit(f"bootstrap: this command failed: {' '.join(command)}")


def has_registry(python: Path) -> bool:
    """Say whether pip reaches a package registry (one small wheel, no retries)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "pip", "download", "--no-deps", "--retries=0", "--timeout=10"]
        done = subprocess.run([*command, "-d", folder, "wheel"], check=False, capture_output=True)
        return done.returncode == 0


def main() -> None:
    """See the module's text."""
    if sys.argv[1:2] == ["--list"]:
        print(*extra_requirements(sys.argv[2:]))
        return
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    venv, extras = Path(sys.argv[1]).absolute(), sys.argv[2:]
    python = make_environment(venv)
    wanted = requirements(extras)
    if not can_import(python, "torch"):
        wanted.append(TORCH)
    pip(python, *wanted)
    pip(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    (venv / "gpumem_alloc.offline").write_text("0" if has_registry(python) else "1")
    (venv / "gpumem_alloc.source").write_text(str(ROOT))


if __name__ == "__main__":
    main()
