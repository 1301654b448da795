"""The layers of DESIGN.md: a file includes only what stands below it, and stays readable."""

from __future__ import annotations

import re
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
# Lowest first. bindings.cpp and the doors stand on all of them.
LAYERS = ("base", "kernels", "driver", "core", "replay", "torch")
# The bridge is compiled apart, against what is installed: with these of ours and no others.
BRIDGE = "torch/bridge"
BRIDGE_USES = re.compile(
    r"base/\w+\.h|driver/driver\.h|core/(allocator|options|statistics)\.h|core/\w+\.def|torch/bridge/.*"
)
CUDA_HEADERS = re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|cudaTypedefs)\.h$")


def sources(root: Path) -> list[Path]:
    suffixes = {".h", ".cpp", ".cu"}
    return sorted(path for path in (root / "csrc").rglob("*") if path.suffix in suffixes)


def is_bridge(root: Path, path: Path) -> bool:
    return path.is_relative_to(root / "csrc" / BRIDGE)


def test_includes_point_downwards(root: Path) -> None:
    wrong = []
    for path in sources(root):
        folder = path.relative_to(root / "csrc").parts[0]
        rank = LAYERS.index(folder) if folder in LAYERS else len(LAYERS)
        for include in INCLUDE.findall(path.read_text()):
            target = include.split("/")[0]
            if target in LAYERS and LAYERS.index(target) > rank:
                wrong.append(f"{path.relative_to(root)} includes {include}")
    assert wrong == []


def test_our_includes_are_relative_to_csrc(root: Path) -> None:
    wrong = [
        f"{path.relative_to(root)} includes {include}"
        for path in sources(root)
        for include in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE)
        if not (root / "csrc" / include).exists()
    ]
    assert wrong == []


def test_only_the_cuda_driver_includes_cuda_headers(root: Path) -> None:
    users = {
        path.name
        for path in sources(root)
        if not is_bridge(root, path)
        and any(CUDA_HEADERS.match(include) for include in INCLUDE.findall(path.read_text()))
    }
    assert {name for name in users if not name.startswith("cuda_driver")} == set()


def test_the_bridge_is_made_of_few_files_and_none_but_it_includes_them(root: Path) -> None:
    for path in sources(root):
        includes = re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE)
        if is_bridge(root, path):
            assert [name for name in includes if not BRIDGE_USES.fullmatch(name)] == [], path
        elif path.name != "bindings_bridge.cpp":
            assert [name for name in includes if name.startswith(BRIDGE)] == [], path


def test_only_the_bindings_include_pybind11_and_only_the_bridge_torch(root: Path) -> None:
    for path in sources(root):
        if is_bridge(root, path):
            continue
        includes = [
            name
            for name in INCLUDE.findall(path.read_text())
            if not (root / "csrc" / name).exists()  # csrc/torch is our own folder
        ]
        if not path.name.startswith("bindings"):
            assert not [name for name in includes if name.startswith("pybind11")], path
        assert not [name for name in includes if name.startswith(("torch/", "c10/", "ATen/"))], path


def test_files_stay_short(root: Path) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources(root)}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}
