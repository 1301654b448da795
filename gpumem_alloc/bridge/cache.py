"""Where built bridges are kept, and how several processes get one built once.

Each bridge has a folder, named by everything that it depends on: torch's version, Python's, the C++
ABI, our version, and the hash of sources and flags. In it are the module, a note with the module's
hash, and the compiler's log. A module is there once its note is: both are renamed into place, the
note last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumem_alloc.bridge import build, stamps
from gpumem_alloc.bridge.build import Recipe
from gpumem_alloc.bridge.errors import BridgeError

ENVIRONMENT = "GPUMEM_ALLOC_CACHE"
ABSENT = "absent"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Entry:
    """One bridge's folder; nothing need be there."""

    folder: Path
    is_checked: bool = True  # whether others may be able to write there

    @property
    def module(self) -> Path:
        """The module itself."""
        return self.folder / build.module_name()

    @property
    def note(self) -> Path:
        """What is known of the module."""
        return self.folder / "bridge.json"

    @property
    def log(self) -> Path:
        """What the compiler said at the last build."""
        return self.folder / "build.log"

    @property
    def failure(self) -> Path:
        """What went wrong at the last build."""
        return self.folder / "failed.json"

    def fault(self, made: Recipe) -> str | None:
        """Why the module cannot be used, or None if it can; "absent" if there is none."""
        try:
            if not self.note.exists() or not self.module.exists():
                return ABSENT
        except OSError:  # another user's folder
            return ABSENT
        for path in (self.folder.parent, self.folder, self.module) if self.is_checked else ():
            if why := whose_it_is(path):
                return f"not to be trusted: {path} {why}"
        stamp = stamps.read(self.module)
        if stamp is not None and stamp.torch != made.facts.version:
            return f"built for torch {stamp.torch}, and this is torch {made.facts.version}"
        if stamp is None or stamp.source_id != made.source_id or not self._is_whole():
            return "damaged"
        return None

    def _is_whole(self) -> bool:
        try:
            return bool(json.loads(self.note.read_text())["sha256"] == _sha256(self.module))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def publish(self, module: Path, details: dict[str, str]) -> None:
        """Put a built module, which lies on the same file system, in place."""
        text = json.dumps({**details, "sha256": _sha256(module)}, indent=1)
        written = module.with_name("bridge.json")
        written.write_text(text + "\n")
        self.failure.unlink(missing_ok=True)
        module.chmod(0o755)  # whatever the umask
        module.replace(self.module)
        written.replace(self.note)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def whose_it_is(path: Path) -> str:
    """Say why a file or folder may have been written by others; nothing if only we and root may."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    return "is writable by others" if status.st_mode & _OTHERS_MAY_WRITE else ""


def refuse_if_others_write(path: Path) -> None:
    """Raise BridgeError if a folder is not ours alone."""
    if why := whose_it_is(path):
        raise BridgeError(
            f"no bridge is loaded from {path}: it {why}.",
            "A module runs with your rights, and somebody else could have put it there.",
            f"Run: chmod go-w {path}   (or set {ENVIRONMENT} to a folder of your own).",
        )


def name(made: Recipe, version: str) -> str:
    """Return the name of a bridge's folder; `version` is ours."""
    tag = build.module_name()[len(build.MODULE) + 1 :].partition(".")[0]
    abi = "cxx11" if made.facts.cxx11_abi else "oldabi"
    return f"torch-{made.facts.version}-{tag}-{abi}-{version}-{made.source_id}"


def shipped(package: Path, entry_name: str) -> Entry:
    """A bridge that was built when the package was installed."""
    return Entry(package / "bridge" / "built" / entry_name, is_checked=False)


def shipped_for(package: Path) -> set[str]:
    """Which versions of torch the bridges that came with the package were built for."""
    modules = (package / "bridge" / "built").glob(f"*/{build.module_name()}")
    return {stamp.torch for stamp in map(stamps.read, modules) if stamp is not None}


def folders() -> list[Path]:
    """Where bridges may be kept, best first. The last one is made to fit by writable_folder()."""
    roots = [Path(os.environ[ENVIRONMENT]).absolute()] if os.environ.get(ENVIRONMENT) else []
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # a user without a home
        home = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
        roots += [] if roots else [home / "gpumem_alloc"]
    return [*(root / "bridge" for root in roots), _temporary()]


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"gpumem_alloc-{os.getuid()}"


def writable_folder() -> Path:
    """Make and return the first folder that can be written. Raises BridgeError if none can."""
    for folder in folders():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700 if folder == _temporary() else 0o755, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            refuse_if_others_write(folder)
            return folder
    raise BridgeError(
        "there is no folder to keep the bridge in.",
        f"None of {', '.join(map(str, folders()))} can be written.",
        f"Set {ENVIRONMENT} to a folder of your own.",
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock that ends with this process at the latest.

    Says whether it is held: on a file system without locks, several processes build the same, and
    the last one's stays.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_held = True
        except OSError:
            is_held = False
        yield is_held
    finally:
        os.close(descriptor)
