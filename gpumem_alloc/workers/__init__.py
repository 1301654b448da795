"""CPU tensors between processes by value: nothing in shared memory, no descriptor kept.

    with gpumem_alloc.workers.no_sharing():
        for batch in DataLoader(dataset, num_workers=2):
            ...

Importing it needs no torch. docs/workers.md says what it costs.
"""

from gpumem_alloc.workers.mode import is_active, no_sharing

__all__ = ["is_active", "no_sharing"]
