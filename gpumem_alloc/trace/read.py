"""Tell the formats apart by their content, within limits on size, and read them."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import Trace
from gpumem_alloc.trace.own import MAGIC, read_own
from gpumem_alloc.trace.pytorch import read_pytorch
from gpumem_alloc.trace.rmm import read_rmm

GZIP = b"\x1f\x8b"
PICKLE = b"\x80"
MAX_FILE_BYTES = 16 << 30
# Recorded snapshots shrink 25 to 60 times; a file that unfolds more than this is a bomb.
MAX_RATIO = 400
SMALL_FILE_BYTES = 16 << 20
READ_BYTES = 1 << 20


def read_trace(path: Path | str, device: int | None = None) -> Trace:
    """Read a snapshot, an RMM log or our own file, gzipped or not.

    Without `device` a file of several devices gives the first one that has events. Raises
    TraceError, one line, for anything that cannot be used, and for a file that is not there.
    """
    path = Path(path)
    try:
        return _read(path, device)
    except OSError as error:
        raise TraceError(path, error.strerror or str(error)) from None
    except MemoryError:
        raise TraceError(path, "too large for this machine's memory") from None


def _read(path: Path, device: int | None) -> Trace:
    if path.is_dir():
        raise TraceError(path, "is a directory")
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head == MAGIC:
        return read_own(path, device)
    if not head:
        raise TraceError(path, "the file is empty")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise TraceError(path, f"{size} bytes are more than a trace file may have")
    data = path.read_bytes()
    if data.startswith(GZIP):
        data = unzip(path, data)
    if data.startswith(PICKLE):
        return read_pytorch(path, data, device)
    if data.startswith(MAGIC):
        raise TraceError(path, "our own trace files are mapped into memory; gunzip it first")
    if b"\0" in data[:READ_BYTES]:
        raise TraceError(path, "neither a memory snapshot, nor an RMM log, nor our own format")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise TraceError(
            path, "neither a memory snapshot, nor an RMM log, nor our own format"
        ) from None
    return _single_device(path, read_rmm(path, text), device)


def _single_device(path: Path, trace: Trace, device: int | None) -> Trace:
    if device not in (None, 0):
        raise TraceError(path, f"it has no events of device {device}: an RMM log names no device")
    return trace


def unzip(path: Path, data: bytes) -> bytes:
    """Unfold gzip data, giving up on a bomb; raises TraceError."""
    limit = min(MAX_FILE_BYTES, max(SMALL_FILE_BYTES, MAX_RATIO * len(data)))
    parts = []
    unfolded = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while part := stream.read(READ_BYTES):
                parts.append(part)
                unfolded += len(part)
                if unfolded > limit:
                    raise TraceError(path, f"unfolds to more than {limit} bytes: not a trace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, f"truncated or damaged gzip data: {error}") from None
    return b"".join(parts)
