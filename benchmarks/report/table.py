"""The tables of the README and of docs/benchmarks.md, made from all of benchmarks/results/.

python -m benchmarks.report.table            print the README's sections
python -m benchmarks.report.table --write    put them between the README's markers, write the page
                                             of the docs, and draw what is stale in docs/pictures/
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from ..host import attacks, host_cost, scale_curves
from ..store import ResultsError, load_all
from . import (
    capacity_table,
    claims,
    columns,
    full_table,
    isolation_table,
    ranks_table,
    readme_pictures,
    readme_table,
)
from .summary import Summary, summarise

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
HOST_COST = RESULTS / "host_cost"
SCALE = RESULTS / "scale"
ISOLATION = RESULTS / "isolation"
ATTACKS = RESULTS / "attacks"
RANKS = RESULTS / "ranks"
RANKS_PAGE = ROOT / "docs" / "several-gpus.md"
ISOLATION_PAGE = ROOT / "docs" / "isolation.md"
PICTURES = ROOT / "docs" / "pictures"


def result_files() -> list[Path]:
    """Return the results files, oldest first by their names, which begin with a date."""
    return sorted(RESULTS.glob("*.json"))


@functools.cache
def summaries() -> list[Summary]:
    """Return the figures of all results files, merged. Raises ResultsError."""
    return summarise(load_all(result_files()))


def source(summary: Summary, folder: str = "", kinds: Container[str] | None = None) -> str:
    """Say on what, with what and when a table was measured, and where its rows are.

    With `kinds`: of the sessions that have rows of such a kind only.
    """
    environment = summary.setting.environment
    sessions = [
        session
        for index, session in summary.setting.sessions.items()
        if kinds is None
        or any(row["session"] == index and row["kind"] in kinds for row in summary.setting.rows)
    ]
    versions = columns.versions(summary, kinds)
    dates = [str(each.get("date")).split()[0] for each in sessions]
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    driver = f"driver {environment['driver']}, " if environment.get("driver") else ""
    return (
        f"{environment.get('gpu')}, {driver}torch {environment.get('torch')}, "
        f"gpumem_alloc {_grouped(versions)}, {when}, sessions: {len(dates)}. "
        f"Every row is in `benchmarks/results/{folder}`, every allocator and how each figure was "
        "made in [docs/benchmarks.md](docs/benchmarks.md)."
    )


def _grouped(versions: list[str]) -> str:
    """Write each number once: 0.1.0 (a, b)."""
    found: dict[str, list[str]] = {}
    for version in versions:
        number, _, commit = version.partition(" ")
        found.setdefault(number, []).append(commit.strip("()"))
    return ", ".join(f"{number} ({', '.join(commits)})" for number, commits in found.items())


def results_section() -> str:
    """Return the main table, of the newest setting."""
    found = summaries()
    return readme_table.render(found[0], source(found[0])) if found else ""


def capacity_section() -> str:
    """Return what fits under each limit."""
    found = summaries()
    kinds = ("capacity", "no_margin")
    text = capacity_table.render(found[0], source(found[0], kinds=kinds)) if found else ""
    return f"### What fits\n\n{text}" if text else ""


def claims_section() -> str:
    """Return what the source documents claim, and what was measured."""
    found = summaries()
    where = "Rows, card and versions are those of the first table."
    text = claims.render(found[0], where) if found else ""
    return f"### What the source documents claim\n\n{text}" if text else ""


def host_cost_section() -> str:
    """Return the newest table of host costs."""
    found = newest(HOST_COST)
    if found is None:
        return ""
    content, path = found
    rows = content["rows"]
    how = f"The least of the rounds, of which there were {_round_count(rows)}."
    return f"{host_cost.render(rows)}\n\n{how} {_of_file(content, path)}\n"


def host_cost_page() -> str:
    """Return what docs/benchmarks.md says of the host: each file, and its single calls."""
    parts = ["# Costs on the host"]
    for path in sorted(HOST_COST.glob("*.json"), reverse=True):
        content = json.loads(path.read_text())
        rows = content["rows"]
        how = "Rows: the least of the rounds; percentiles: the median. Rounds"
        latencies = host_cost.render_latencies(rows)
        parts.append(f"## {path.stem}\n\n{host_cost.render(rows)}")
        parts += [latencies] if latencies else []
        parts.append(f"{how}: {_round_count(rows)}. {_of_file(content, path)}")
    return "\n\n".join(parts) + "\n" if len(parts) > 1 else ""


def isolation_section() -> str:
    """Return what the no-sharing mode does with attacks, and what it costs."""
    found = isolation_summary()
    text = isolation_table.render(found, source(found, "isolation/")) if found else ""
    costs = f"### What isolation costs\n\n{text}" if text else ""
    return "\n".join(part for part in (attacks_table(), costs) if part)


def attacks_table() -> str:
    """Return what PyTorch's allocator and each level do with each attack."""
    made = newest(ATTACKS)
    if made is None:
        return ""
    content, path = made
    return (
        f"### What isolation holds\n\n{attacks.render(content['rows'])}\n"
        "In brackets: what happened where the level promises nothing. –: not run. "
        f"{_of_file(content, path)}\n"
    )


@functools.cache
def isolation_summary() -> Summary | None:
    """Return the newest setting's figures of the no-sharing mode. Raises ResultsError."""
    found = summarise(load_all(sorted(ISOLATION.glob("*.json"))))
    return found[0] if found else None


def isolation_costs_section() -> str:
    """Return the costs of the levels over all workloads, which stand in docs/isolation.md."""
    found = isolation_summary()
    if found is None:
        return ""
    where = source(found, "isolation/").replace("](docs/", "](")
    return f"{isolation_table.render_costs(found)}\n{where}\n"


def scale_section() -> str:
    """Return the newest table of cost against number."""
    found = newest(SCALE)
    if found is None:
        return ""
    content, path = found
    picture = "![Cost against number](docs/pictures/scale.png)"
    rows = content["rows"]
    alone = "" if _round_count(rows) > 1 else ", so a single point may be far off"
    return (
        f"### How costs grow\n\n{picture}\n\n{scale_curves.render(rows)}\n\n"
        f"Rounds: {_round_count(rows)}{alone}. {_of_file(content, path)}\n"
    )


def ranks_section() -> str:
    """Return the newest tables of several ranks, which stand in docs/several-gpus.md."""
    found = newest(RANKS)
    if found is None:
        return ""
    content, path = found
    rows = content["rows"]
    odd = "; ".join(ranks_table.odd_ones(rows)) or "none"
    note = f" {content['note']}" if "note" in content else ""
    return (
        f"{ranks_table.render(rows)}\nOdd ranks: {odd}. Rounds: {_round_count(rows)}. "
        f"{content['machine'].get('gpus')} × {_of_file(content, path)}{note}\n"
    )


def newest(folder: Path) -> tuple[dict[str, Any], Path] | None:
    """Return the content of a folder's newest file, by its name, which begins with a date."""
    path = max(folder.glob("*.json"), default=None)
    return None if path is None else (json.loads(path.read_text()), path)


def _round_count(rows: list[dict[str, Any]]) -> int:
    return 1 + max(int(row["round"]) for row in rows)


def _of_file(content: dict[str, Any], path: Path) -> str:
    machine = content["machine"]
    ids = dict.fromkeys(row.get("git_id", machine["git_id"]) for row in content["rows"])
    return (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, "
        f"gpumem_alloc {machine['gpumem_alloc']} ({', '.join(ids)}), "
        f"{content['date'].split()[0]}: `{path.relative_to(ROOT)}`."
    )


def pictures_section() -> str:
    """Return the links to the pictures of the newest setting."""
    made = [each for summary in summaries()[:1] for each in readme_pictures.pictures(summary)]
    return "".join(f"![{each.says}](docs/pictures/{each.name}.png)\n\n" for each in made)


# What stands between which markers of the README.
SECTIONS: dict[str, Callable[[], str]] = {
    "results": results_section,
    "pictures": pictures_section,
    "host-cost": host_cost_section,
    "capacity": capacity_section,
    "claims": claims_section,
    "scale": scale_section,
    "isolation": isolation_section,
}
# The same for pages other than the README.
OTHER_SECTIONS: dict[Path, dict[str, Callable[[], str]]] = {
    RANKS_PAGE: {"ranks": ranks_section},
    ISOLATION_PAGE: {"costs": isolation_costs_section},
}


def page() -> str:
    """Return docs/benchmarks.md."""
    return "\n".join(part for part in (full_table.render(summaries()), host_cost_page()) if part)


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
        raise ValueError(f"there are no lines {begin} and {end}: put them where the table belongs")
    return _pattern(name).sub(lambda _: f"{begin}\n{table}{end}", readme)


def _pattern(name: str) -> re.Pattern[str]:
    begin, end = markers(name)
    return re.compile(f"{re.escape(begin)}\n(.*?){re.escape(end)}", re.DOTALL)


def write() -> None:
    """Write the README's sections, the page and the pictures."""
    for path, sections in {README: SECTIONS, **OTHER_SECTIONS}.items():
        text = path.read_text()
        for name, make in sections.items():
            text = with_section(text, name, make())
        path.write_text(text)
    PAGE.write_text(page())
    for summary in summaries()[:1]:
        readme_pictures.write(summary, PICTURES)
    if (found := newest(SCALE)) is not None:
        readme_pictures.write_scale(found[0]["rows"], PICTURES)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    try:
        if parser.parse_args().write:
            write()
            return
        for name, make in SECTIONS.items():
            print(make() or f"{name}: nothing measured yet", end="\n\n")
    except (OSError, ValueError, ResultsError) as error:
        sys.exit(f"table: {error}")


if __name__ == "__main__":
    main()
