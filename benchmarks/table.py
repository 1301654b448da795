"""The README's table of results, made from the newest results file.

python -m benchmarks.table            print it
python -m benchmarks.table --write    put it between the README's markers
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.summary import Row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SECTION = re.compile(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", re.DOTALL)
MIB = 1 << 20
NAMES = {
    "native": "PyTorch default",
    "expandable": "PyTorch expandable segments",
    "cudaMallocAsync": "PyTorch cudaMallocAsync",
}
DOORS = {"stock": ", stock door", "bridge": ", bridge"}
HEAD = (
    "| workload | allocator | rounds | live MiB | card MiB | (card - base) / live | step time "
    "against the faster PyTorch run, 95 % | all steps but the first, s | losses |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def newest() -> Path | None:
    """Return the newest results file by name, which begins with its date."""
    return max(RESULTS.glob("*.json"), default=None)


def render(results: dict[str, Any], name: str) -> str:
    """Return the table with its caption; `name` is the results file's."""
    machine = results["machine"]
    version = machine["gpumem_alloc"] + (f" ({machine['git_id']})" if machine["git_id"] else "")
    driver = f"driver {machine['driver']}, " if machine["driver"] else ""
    lines = "".join(_line(entry) for entry in results["summary"])
    return (
        f"{HEAD}{lines}\n"
        f"{machine['gpu']}, {driver}torch {machine['torch']}, gpumem_alloc {version}, "
        f"{results['date'].split()[0]}: `benchmarks/results/{name}`, which also holds every step.\n"
    )


def _line(entry: Row) -> str:
    name = entry["allocator"]
    door = DOORS.get(entry.get("door", ""), "")
    allocator = NAMES.get(name, f"ours, `{name.partition('@')[0]}`{door}")
    if "step_ratio" not in entry:
        reason = "; ".join(entry["errors"]) or "not run"
        cells = [entry["workload"], allocator, "", reason.replace("|", "/"), *[""] * 5]
    else:
        cells = [
            entry["workload"],
            allocator,
            str(entry["runs"]),
            f"{entry['live_peak_bytes'] / MIB:,.0f}",
            f"{entry['card_peak_bytes'] / MIB:,.0f}" if entry["card_peak_bytes"] else "",
            "" if entry["card_ratio"] is None else f"{entry['card_ratio']:.3f}",
            _steps(entry),
            f"{entry['run_s']:.1f}",
            "" if entry["losses"] in ("native", "not run") else entry["losses"],
        ]
    return f"| {' | '.join(cells)} |\n"


def _steps(entry: Row) -> str:
    if entry["step_ratio"] is None:
        return ""
    return (
        f"{entry['step_ratio']:.3f} ({entry['step_ratio_low']:.3f}–{entry['step_ratio_high']:.3f})"
    )


def expected() -> str:
    """Return what must stand between the README's markers; empty without a results file."""
    path = newest()
    return "" if path is None else render(json.loads(path.read_text()), path.name)


def section(readme: str) -> str | None:
    """Return what stands between a README's markers; None if it has none."""
    match = SECTION.search(readme)
    return match[1] if match else None


def with_section(readme: str, table: str) -> str:
    """Return the README with the table between its markers. Raises ValueError if it has none."""
    if section(readme) is None:
        raise ValueError(f"README.md has no lines {BEGIN} and {END}: put them where it belongs")
    return SECTION.sub(lambda _: f"{BEGIN}\n{table}{END}", readme)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if not parser.parse_args().write:
        print(expected() or "no results file yet: make bench on a GPU", end="\n")
        return
    try:
        README.write_text(with_section(README.read_text(), expected()))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
