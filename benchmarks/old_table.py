"""The README's tables of results, each made from the newest file of its folder.

python -m benchmarks.table            print them
python -m benchmarks.table --write    put them between the README's markers
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import host_cost
from benchmarks.old_summary import Row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
HOST_COST = RESULTS / "host_cost"
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


def newest(folder: Path) -> Path | None:
    """Return the newest results file of a folder by name, which begins with its date."""
    return max(folder.glob("*.json"), default=None)


def render(results: dict[str, Any], name: str) -> str:
    """Return the table with its caption; `name` is the results file's."""
    lines = "".join(_line(entry) for entry in results["summary"])
    return f"{HEAD}{lines}\n{_source(results, name)}, which also holds every step.\n"


def render_host_cost(results: dict[str, Any], name: str) -> str:
    """Return the table of host costs with its caption."""
    rounds = 1 + max(row["round"] for row in results["rows"])
    return (
        f"{host_cost.render(results['rows'])}\n\n"
        f"Medians; rounds: {rounds}. {_source(results, f'host_cost/{name}')}.\n"
    )


def _source(results: dict[str, Any], name: str) -> str:
    machine = results["machine"]
    version = machine["gpumem_alloc"] + (f" ({machine['git_id']})" if machine["git_id"] else "")
    driver = f"driver {machine['driver']}, " if machine["driver"] else ""
    return (
        f"{machine['gpu']}, {driver}torch {machine['torch']}, gpumem_alloc {version}, "
        f"{results['date'].split()[0]}: `benchmarks/results/{name}`"
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


# Between which markers of the README stands what.
SECTIONS = {"results": (RESULTS, render), "host-cost": (HOST_COST, render_host_cost)}


def expected(name: str) -> str:
    """Return what must stand between a section's markers; empty without a results file."""
    folder, make = SECTIONS[name]
    path = newest(folder)
    return "" if path is None else make(json.loads(path.read_text()), path.name)


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a section."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def section(readme: str, name: str) -> str | None:
    """Return what stands between a README's markers; None if it has none."""
    match = _pattern(name).search(readme)
    return match[1] if match else None


def with_section(readme: str, name: str, table: str) -> str:
    """Return the README with the table between its markers. Raises ValueError if it has none."""
    begin, end = markers(name)
    if section(readme, name) is None:
        raise ValueError(f"README.md has no lines {begin} and {end}: put them where it belongs")
    return _pattern(name).sub(lambda _: f"{begin}\n{table}{end}", readme)


def _pattern(name: str) -> re.Pattern[str]:
    begin, end = markers(name)
    return re.compile(f"{re.escape(begin)}\n(.*?){re.escape(end)}", re.DOTALL)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if not parser.parse_args().write:
        for name in SECTIONS:
            print(expected(name) or f"{name}: no results file yet", end="\n\n")
        return
    try:
        readme = README.read_text()
        for name in SECTIONS:
            readme = with_section(readme, name, expected(name))
        README.write_text(readme)
    except (OSError, ValueError) as error:
        sys.exit(f"table: {error}")


if __name__ == "__main__":
    main()
