"""A line inside each bridge that says what it was built for, readable without loading it."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path

_BEGIN = b"gpumem_alloc bridge stamp "


@dataclass(frozen=True)
class Stamp:
    """What a module was built for and from."""

    torch: str
    source_id: str


def source(torch_version: str, source_id: str) -> str:
    """Return the C++ that puts the line into a module."""
    text = _BEGIN.decode() + json.dumps({"torch": torch_version, "source_id": source_id})
    literal = json.dumps(text)  # quotes and escapes as C++ has them
    return (
        'extern "C" const char gma_bridge_stamp[];\n'
        f"__attribute__((used)) const char gma_bridge_stamp[] = {literal};\n"
    )


def read(module: Path) -> Stamp | None:
    """Return a module's stamp; None for a file without one."""
    try:
        with module.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            start = data.find(_BEGIN)
            end = data.find(b"\0", start)
            if start < 0 or end < 0:
                return None
            values = json.loads(data[start + len(_BEGIN) : end])
            return Stamp(str(values["torch"]), str(values["source_id"]))
    except (OSError, ValueError, KeyError):
        return None
