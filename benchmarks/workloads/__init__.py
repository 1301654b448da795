"""The workloads by name: real models, patterns, the claims of the source documents, RMM's own."""

from __future__ import annotations

from . import documents, generation, language, patterns, rmm, serving, sparse, streams, vision
from .workload import FAMILIES, Mark, Sized, Workload

__all__ = ["FAMILIES", "MAIN_WORKLOADS", "WORKLOADS", "Mark", "Sized", "Workload"]

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (language, generation, vision, sparse, streams, serving, documents, patterns, rmm)
    for workload in module.WORKLOADS
}
# Those whose times are repeated first.
MAIN_WORKLOADS = ("gpt2_varlen", "gnn", "prefetch_train", "llama_generate")
