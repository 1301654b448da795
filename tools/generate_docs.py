"""Write the tables of docs/: options and statistics from the .def tables, and workloads.

    python3 tools/generate_docs.py [--check]

With --check nothing is written; exit code 1 and one line a file when a table is not current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.workloads import MAIN_WORKLOADS, WORKLOADS, Workload  # noqa: E402

ENTRY = re.compile(r'^GMA_([A-Z]+)\((\w+), (.*), "((?:[^"\\]|\\.)*)"\)$')

OPTIONS_HEAD = """# Options

Made from `csrc/core/options.def` by `tools/generate_docs.py`; do not edit.

Pass them to `gpumem_alloc.enable()` by name, or set `GPUMEM_ALLOC_CONF="key:value,key:value"`.
A call wins over the environment, which wins over the default. An unknown key or a value outside
its range is an error that names the nearest valid one.

| option | default | unit | values | what it does |
|---|---|---|---|---|
"""

STATISTICS_HEAD = """# Statistics

Made from `csrc/core/statistics.def` by `tools/generate_docs.py`; do not edit.

A gauge has `current`, `peak`, `allocated` (sum of rises) and `freed` (sum of falls), each for
`all`, `small_pool` (requests up to 1 MiB) and `large_pool`. A counter only grows.

| statistic | kind | unit | what it counts |
|---|---|---|---|
"""

WORKLOADS_HEAD = """# Workloads

Made from `benchmarks/workloads` by `tools/generate_docs.py`; do not edit.

`python -m gpumem_alloc bench --workloads NAME,NAME` runs some of them. A *model* is a real one with
random numbers in place of weights and data, a *pattern* has its shape of requests and little else,
a *document* is what one of the project's source documents claims to have measured, and *rmm* is
how RMM measures itself. Shapes vary by a seeded generator, the same in every run. Where a unit
stands, the capacity benchmark looks for the largest size that fits. Times are repeated first for
those in bold.

A new one is a function that tells `mark` of its steps, a seed in
`benchmarks/workloads/shapes.py`, and an entry in the `WORKLOADS` of its file.

| workload | family | seed | steps | needs | capacity in | what it stresses |
|---|---|---|---|---|---|---|
"""


def entries(table: Path) -> list[tuple[str, str, list[str], str]]:
    """Parse a .def table to (kind, name, middle fields, sentence); ValueError names a bad line."""
    found = []
    for number, line in enumerate(table.read_text().splitlines(), start=1):
        if not line or line.startswith("//"):
            continue
        match = ENTRY.match(line) or re.match(r'^GMA_([A-Z]+)\((\w+)(), "(.*)"\)$', line)
        if match is None:
            raise ValueError(f"{table.name}:{number}: not a table entry: {line}")
        kind, name, middle, sentence = match.groups()
        fields = re.findall(r'"[^"]*"|[^,\s][^,]*', middle)
        found.append((kind, name, [field.strip('"') for field in fields], sentence))
    return found


def escape(text: str) -> str:
    """Make text safe inside a table cell."""
    return text.replace("|", "\\|")


def option_row(kind: str, name: str, fields: list[str], sentence: str) -> str:
    """Make one row of the option table."""
    if kind == "CHOICE":
        (default, choices), unit = fields, ""
        values = ", ".join(f"`{choice}`" for choice in choices.split("|"))
    elif kind == "TEXT":
        (default, values), unit = fields, ""
    else:
        default, unit, low, high = fields
        values = f"{low} – {high}"
    default = f"`{default}`" if default else "empty"
    return f"| `{name}` | {default} | {unit} | {escape(values)} | {escape(sentence)} |\n"


def statistic_row(kind: str, name: str, fields: list[str], sentence: str) -> str:
    """Make one row of the statistics table."""
    unit = "bytes" if name.endswith("_bytes") else "count"
    return f"| `{name}` | {kind.lower()} | {fields[0] if fields else unit} | {sentence} |\n"


def workload_row(workload: Workload) -> str:
    """Make one row of the table of workloads."""
    name = f"**`{workload.name}`**" if workload.name in MAIN_WORKLOADS else f"`{workload.name}`"
    needs = ", ".join(f"`{requirement}`" for requirement in workload.requires)
    unit = workload.sized.unit if workload.sized else ""
    cells = (name, workload.family, str(workload.seed), str(workload.steps), needs, unit)
    return f"| {' | '.join(cells)} | {escape(workload.stresses)}. |\n"


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return each generated page and its text."""
    core = root / "csrc" / "core"
    options = "".join(option_row(*entry) for entry in entries(core / "options.def"))
    statistics = "".join(statistic_row(*entry) for entry in entries(core / "statistics.def"))
    workloads = "".join(workload_row(workload) for workload in WORKLOADS.values())
    return {
        root / "docs" / "options.md": OPTIONS_HEAD + options,
        root / "docs" / "statistics.md": STATISTICS_HEAD + statistics,
        root / "docs" / "workloads.md": WORKLOADS_HEAD + workloads,
    }


def main() -> int:
    """See the module's text."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__)
        return 2
    stale = 0
    for path, text in pages().items():
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is not current: run `make docs`")
            stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
