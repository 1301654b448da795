"""A compiler that takes no time: `python fake_compiler.py ...` writes files and notes its calls.

FAKE_CALLS names the file of notes, FAKE_FAIL a source that does not compile, FAKE_SAYS what is said
of it, FAKE_SECONDS how long each compilation takes, FAKE_MACROS what the compiler says it is.
"""

import json
import os
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    if "-dM" in arguments:
        print(os.environ.get("FAKE_MACROS", "#define __GNUC__ 12\n#define __GNUC_MINOR__ 2"))
        return 0
    if any(argument.startswith("-print-file-name") for argument in arguments):
        print("libstdc++.so.6")
        return 0
    output = Path(arguments[arguments.index("-o") + 1])
    if "-shared" in arguments:
        note("link")
        parts = [Path(argument) for argument in arguments if argument.endswith(".o")]
        output.write_bytes(b"".join(part.read_bytes() for part in parts))
        return 0
    source = Path(arguments[arguments.index("-c") + 1])
    note(source.name)
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if source.name == os.environ.get("FAKE_FAIL"):
        print(os.environ.get("FAKE_SAYS", f"{source}:7:1: error: no such luck"))
        return 1
    output.write_bytes(literal(source) if source.name == "stamp.cpp" else source.read_bytes())
    return 0


def literal(source: Path) -> bytes:
    """The text in the file's last string literal, as it stands in a compiled one."""
    text = source.read_text()
    quoted = text[text.index(' = "') + 3 : text.rindex(";")]
    return str(json.loads(quoted)).encode() + b"\0"


def note(what: str) -> None:
    with Path(os.environ["FAKE_CALLS"]).open("a") as calls:
        calls.write(what + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
