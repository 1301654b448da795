"""What a workload is: a loop that allocates, and what a benchmark must know of it.

A loop takes torch, the number of its steps and `mark`, which it calls at the end of each step with
the loss, or with a checksum of what it made where there is no loss. Nothing that a step made may
outlive it by accident: what lives on is kept on purpose.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .shapes import SEEDS

Mark = Callable[[Any], None]
FAMILIES = ("model", "pattern", "document", "rmm")


@dataclass(frozen=True)
class Sized:
    """The same work at a size, for finding the largest one that fits; more needs more memory."""

    unit: str  # in the plural: "sequences"
    run: Callable[[Any, int, int, Mark], None]  # torch, size, steps, mark
    smallest: int  # it runs on any card that the workload is meant for
    steps: int  # the largest of them has the whole size


@dataclass(frozen=True)
class Workload:
    """A loop, its usual number of steps, and what it needs beside torch.

    `unordered` names the kernels whose additions have no fixed order by default, so that two native
    runs may already differ; torch.use_deterministic_algorithms replaces those that have another
    form.
    """

    run: Callable[[Any, int, Mark], None]
    steps: int
    family: str
    smoke_steps: int = 2
    requires: tuple[str, ...] = ()  # what pip is asked for
    libraries: tuple[str, ...] = ()  # modules to import before the clock runs
    unordered: str = ""
    sized: Sized | None = None

    @property
    def name(self) -> str:
        """The function's own."""
        return self.run.__name__

    @property
    def seed(self) -> int:
        """Of the generator that its shapes come from."""
        return SEEDS[self.name]

    @property
    def code_id(self) -> str:
        """A digest of the code around the function: after a change it is another workload."""
        tree = ast.parse(Path(inspect.getfile(self.run)).read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                is_told = ast.get_docstring(node, clean=False) is not None
                node.body = node.body[is_told:] or [ast.Pass()]
        return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]

    @property
    def stresses(self) -> str:
        """The first sentence of the function's text."""
        text = " ".join((self.run.__doc__ or "").split())
        return text.partition(". ")[0].rstrip(".")

    @property
    def missing(self) -> list[str]:
        """What of `requires` cannot be imported."""
        return [
            requirement
            for requirement in self.requires
            if importlib.util.find_spec(re.split(r"[<>=]", requirement)[0]) is None
        ]
