"""Which of our C++ files the bridge is compiled from.

setup.py runs this file by its path, before the package can be imported: only the standard library
is used here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

UNITS = "torch/bridge"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def folder(package: Path) -> Path:
    """Return the folder with the sources: inside an installed package, beside it in a checkout."""
    shipped = package / "csrc"
    return shipped if shipped.is_dir() else package.parent / "csrc"


def units(csrc: Path) -> list[Path]:
    """List the files to compile."""
    return sorted((csrc / UNITS).glob("*.cpp"))


def closure(csrc: Path) -> list[Path]:
    """List the files to compile and all of ours that they include, relative to `csrc`."""
    waiting = units(csrc)
    seen = set(waiting)
    while waiting:
        for name in _INCLUDE.findall(waiting.pop().read_text()):
            file = csrc / name
            if file not in seen and file.is_file():
                seen.add(file)
                waiting.append(file)
    return sorted(path.relative_to(csrc) for path in seen)


def source_id(csrc: Path, flags: Iterable[str]) -> str:
    """Hash what the bridge is made from and how; 16 characters."""
    digest = hashlib.sha256()
    parts = [flag.encode() for flag in flags]
    for path in closure(csrc):
        parts += [path.as_posix().encode(), (csrc / path).read_bytes()]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]
