"""A process with torch imported that forks a child for each snippet: no test pays the import.

One request a line on stdin, {"code", "env", "stdout", "stderr"} with paths; one answer a line,
{"returncode"}. CUDA is not started in this process, so a child starts it as a fresh one would. A
child leaves through the interpreter's ordinary end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch  # noqa: F401  (what the children need not import)

CHILD_SECONDS = 120


def serve() -> str | None:
    """Answer requests until stdin ends. Returns in a child, with the path of its snippet."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become(request)
            return str(request["code"])
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"returncode": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()
    return None


def become(request: dict[str, object]) -> None:
    """Make this child look like a process started with the request's environment and files."""
    signal.alarm(CHILD_SECONDS)
    os.environ.update(request["env"])  # type: ignore[call-overload]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        sys.stdout.flush()
        file = os.open(str(request[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    # A child starts no other processes' answers: the descriptor of the answers stays unused.


if __name__ == "__main__":
    snippet = serve()
    if snippet is not None:
        # In this module's own globals, so that what the snippet leaves behind lives as long as a
        # program's globals do.
        exec(compile(Path(snippet).read_text(), snippet, "exec"), globals())
