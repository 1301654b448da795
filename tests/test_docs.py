"""Documents that cannot rot: every path and symbol they name exists, every table is current."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
EXTENSIONS = "cpp|h|def|py|pyi|md|toml|cmake|json|txt|sh|gz|pickle|csv|png|yaml"
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^\.?[\w.+-]+(/[\w.*+-]+)*/?$")
KNOWN_FILE = re.compile(rf"^[\w.+-]+\.({EXTENSIONS})$")
# name(), Class::member, Class::member(), module.function(); the last part is what must exist.
SYMBOL = re.compile(r"^(?:~?[A-Za-z_]\w*(?:::|\.))*([A-Za-z_]\w*)(\(\))?$")
# Folders that a build makes, which a document may name.
MADE = ("build/", "dist/", ".venv/")
# Other people's names: PyTorch, CUDA and the C library are not in this tree.
FOREIGN = re.compile(
    r"^(torch|c10|at|cuda|pytest|pip|python|std|numpy|os|sys|ctypes|mmap)\b|^(cu|cuda|nvml)[A-Z]"
)


@cache
def tree_text() -> str:
    """All code of this tree, to look names up in."""
    folders = ("csrc", "gpumem_alloc", "tests", "tools", "benchmarks", "cmake")
    suffixes = {".cpp", ".h", ".def", ".py", ".pyi", ".cmake"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [ROOT / "setup.py", ROOT / "CMakeLists.txt"]
    skip = {"third_party", "test_docs.py"}
    return "\n".join(
        path.read_text()
        for path in files
        if path.suffix in suffixes | {".txt"} and not skip & set(path.parts)
    )


def spans(text: str) -> list[str]:
    """The inline code of a document, without its fenced blocks."""
    return SPAN.findall(FENCE.sub("", text))


def names_path(span: str) -> bool:
    """Whether a span of code is meant as a path of this tree."""
    if FOREIGN.match(span) or span.startswith(MADE) or not PATH.match(span):
        return False
    if KNOWN_FILE.match(span):
        return True
    first, slash, _ = span.partition("/")
    return bool(slash) and (ROOT / first).is_dir()


def path_exists(span: str, document: Path) -> bool:
    """Look from the root, from the document, in csrc/, and (a bare name) anywhere."""
    for base in (ROOT, document.parent, ROOT / "csrc"):
        if any(base.glob(span.rstrip("/"))):
            return True
    return "/" not in span and any(
        found
        for folder in ("csrc", "gpumem_alloc", "tests", "tools", "benchmarks", "docs")
        for found in (ROOT / folder).rglob(span)
    )


def names_symbol(span: str) -> str | None:
    """The identifier a span names, if it is written as a symbol: f(), A::b, or a GMA_ name."""
    match = SYMBOL.match(span)
    if match is None or FOREIGN.match(span):
        return None
    if match[2] or "::" in span or re.match(r"GMA_\w|gma_\w|k[A-Z]", span):
        return match[1]
    return None


def bad_paths(text: str, document: Path) -> list[str]:
    return [span for span in spans(text) if names_path(span) and not path_exists(span, document)]


def bad_symbols(text: str) -> list[str]:
    named = {span: names_symbol(span) for span in spans(text)}
    return [
        span
        for span, name in named.items()
        if name is not None and not re.search(rf"\b{name}\b", tree_text())
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_named_exists(document: Path) -> None:
    assert bad_paths(document.read_text(), document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_symbol_named_exists(document: Path) -> None:
    assert bad_symbols(document.read_text()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", FENCE.sub("", document.read_text()))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_the_checks_find_what_is_wrong() -> None:
    page = ROOT / "README.md"
    assert bad_paths("see `csrc/core/nowhere.cpp` and `gone.py`", page) == [
        "csrc/core/nowhere.cpp",
        "gone.py",
    ]
    assert bad_paths("see `csrc/core/options.def`, `options.def` and `50/50`", page) == []
    missing = "no_such_" + "function"
    assert bad_symbols(f"calls `{missing}()` and `Gauge::{missing}`") == [
        f"{missing}()",
        f"Gauge::{missing}",
    ]
    assert bad_symbols("calls `reset_peak()` and `Gauge::reset_peak`, `torch.empty()`") == []
    assert bad_paths("```\n`csrc/gone.cpp`\n```", page) == []


def test_generated_tables_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools/generate_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_tables_name_every_entry() -> None:
    for table in ("options", "statistics"):
        source = (ROOT / "csrc" / "core" / f"{table}.def").read_text()
        names = re.findall(r"^GMA_[A-Z]+\((\w+),", source, re.MULTILINE)
        assert names
        page = (ROOT / "docs" / f"{table}.md").read_text()
        assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == names
