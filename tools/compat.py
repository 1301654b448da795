"""Build the bridge against every torch whose wheel can be had: `make compat`.

    python tools/compat.py [--wheels DIR] [--json] [MINOR...]        e.g. 2.11 2.15

Each wheel is fetched by pip into DIR (about 0.5 GB each; kept, so that the next run is quick),
its headers and the libraries that the bridge links to are unpacked into a temporary folder, and the
bridge is compiled and linked there; nothing of that torch is run. A wheel without CUDA has the
headers all the same: then the bridge is only compiled. The exit code is 1 if a build failed, 2 if
no wheel was to be had.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from gpumem_alloc.bridge import build, facts, obtain, toolchain
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts

ROOT = Path(__file__).resolve().parent.parent
MINORS = ("2.11", "2.12", "2.13", "2.14", "2.15")
_LIBRARIES = "|".join(build.LIBRARIES)
_WANTED = re.compile(rf"torch/(include/.*|version\.py|lib/lib({_LIBRARIES})\.so)")


@dataclass
class Row:
    """What came of one version."""

    minor: str
    torch: str = ""
    cuda: str = ""
    compiled: str = ""
    linked: str = ""
    warnings: int = 0
    seconds: float = 0.0
    note: str = ""


def fetch(minor: str, wheels: Path) -> Path | str:
    """Return the newest wheel of a minor version for this Python, or pip's reason.

    One that was fetched before does where pip finds none.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "-d", str(wheels), f"torch=={minor}.*"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = list(wheels.glob(f"torch-{minor}.*.whl"))
    if done.returncode != 0 and not found:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        return (errors or ["ERROR: pip failed"])[-1].removeprefix("ERROR: ")
    return max(found, key=lambda path: path.stat().st_mtime)


def unpack(wheel: Path, folder: Path) -> TorchFacts:
    """Unpack what a build needs of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if _WANTED.fullmatch(name)])
    return facts.of_folder(folder / "torch")


def try_build(found: TorchFacts, row: Row, folder: Path) -> None:
    """Compile, and with a CUDA wheel link; fill in the row."""
    row.torch, row.cuda = found.version, found.cuda or "none"
    # Headers of CUDA 13 serve for a wheel that has none of its own.
    used = found if found.cuda else TorchFacts(found.version, "13.0", found.root)
    log = folder / "build.log"
    started = time.monotonic()
    try:
        tools = toolchain.find(used)
        made = obtain.recipe(used)
        if found.cuda:
            build.build(made, tools, folder / build.module_name(), log)
        else:
            build.compile_all(made, tools, folder, log)
        row.compiled, row.linked = "yes", "yes" if found.cuda else "no libraries"
    except BridgeError as error:
        row.note = f"{error.what} {error.why}"
        is_link = "linking" in error.what
        row.compiled, row.linked = ("yes", "FAILED") if is_link else ("FAILED", "")
    row.seconds = round(time.monotonic() - started, 1)
    row.warnings = log.read_text().count("warning:") if log.exists() else 0


def check(minor: str, wheels: Path) -> Row:
    """Fetch, unpack and build for one minor version."""
    row = Row(minor)
    wheel = fetch(minor, wheels)
    if isinstance(wheel, str):
        row.note = f"no wheel: {wheel}"
        return row
    with tempfile.TemporaryDirectory(prefix="gpumem_alloc-compat-") as folder:
        try_build(unpack(wheel, Path(folder)), row, Path(folder))
    return row


def show(rows: list[Row]) -> None:
    """Print a table."""
    layout = "{:<6} {:<16} {:<6} {:<9} {:<13} {:>8} {:>8}  {}"
    print(layout.format("minor", "torch", "CUDA", "compiled", "linked", "warnings", "seconds", ""))
    for row in rows:
        print(layout.format(*asdict(row).values()))


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="Build the bridge against other torch versions.")
    parser.add_argument("minors", nargs="*", default=list(MINORS), metavar="MINOR")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "compat")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    arguments = parser.parse_args()
    arguments.wheels.mkdir(parents=True, exist_ok=True)
    rows = []
    for minor in arguments.minors:
        print(f"torch {minor} ...", file=sys.stderr, flush=True)
        rows.append(check(minor, arguments.wheels))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        show(rows)
    if any("FAILED" in (row.compiled, row.linked) for row in rows):
        return 1
    return 0 if any(row.compiled for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
