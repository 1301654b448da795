"""Loops that try, run out of memory and go on with less: libraries' batch-size finders, and ours.

How the libraries know the error (accelerate 1.15, accelerate/utils/memory.py; Lightning 2.6,
lightning/pytorch/utilities/memory.py, which a finder in lightning/pytorch/tuner asks): both want a
RuntimeError with exactly one argument, a text. Accelerate looks in it for "CUDA out of memory."
with the full stop; Lightning for "CUDA" and for "out of memory", anywhere. Both then collect
garbage and call torch.cuda.empty_cache(), which must not fail either, and try a smaller size:
accelerate nine tenths (older ones half), Lightning half, or a binary search. Lightning's loop
catches RuntimeError only.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import tempfile
from typing import Any

LIBRARIES = ()  # accelerate and Lightning are asked too where they are installed
MIB = 1 << 20
LIMIT_BYTES = 1650 * MIB
SAMPLE_BYTES = 100 * MIB
COUNTED = False


def run(torch: Any, _: str) -> dict[str, Any]:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total))

    def use(batch_size: int) -> int:
        made = [
            torch.empty(SAMPLE_BYTES, dtype=torch.uint8, device="cuda") for _ in range(batch_size)
        ]
        return len(made)

    result: dict[str, Any] = {"text": texts(torch, use), "ours": halve(torch, use)}
    if importlib.util.find_spec("accelerate"):
        utilities: Any = importlib.import_module("accelerate.utils")
        finder = utilities.find_executable_batch_size(use, starting_batch_size=128)
        result["accelerate"] = finder()
    if importlib.util.find_spec("lightning"):
        result["lightning"] = [lightning_finds(torch, use, mode) for mode in ("power", "binsearch")]
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] > 0
    assert stats["num_alloc_retries"] > 0
    return result


def recognised(error: BaseException) -> dict[str, bool]:
    """Say who would know the error for what it is; the module's text tells why."""
    known = isinstance(error, RuntimeError) and len(error.args) == 1
    text = str(error.args[0]) if known else ""
    return {
        "accelerate": "CUDA out of memory." in text,
        "lightning": "CUDA" in text and "out of memory" in text,
    }


def texts(torch: Any, use: Any) -> dict[str, Any]:
    """Return what of the error a program may rely on."""
    try:
        use(128)
    except torch.cuda.OutOfMemoryError as error:
        first = str(error).split(". GPU")[0]
        return recognised(error) | {"type": type(error).__name__, "begins": first}
    raise AssertionError("no error was raised")


def halve(torch: Any, use: Any) -> list[int]:
    """Return what a plain loop tries until a size fits."""
    tried = [64]
    while True:
        try:
            return [*tried, use(tried[-1])]
        except RuntimeError as error:
            if not all(recognised(error).values()):
                raise
            tried.append(tried[-1] // 2)
        torch.cuda.empty_cache()


def lightning_finds(torch: Any, use: Any, mode: str) -> int:
    """Return the size that Lightning's finder ends at."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning: Any = importlib.import_module("lightning.pytorch")
    tuner: Any = importlib.import_module("lightning.pytorch.tuner")

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.automatic_optimization = False
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(torch.zeros(1024, 1)), batch_size=self.batch_size
            )

        def training_step(self, batch: Any, _: int) -> None:
            use(len(batch[0]))
            self.optimizers().step()  # nothing to learn, but the finder counts steps

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_steps=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        model = Model()
        tuner.Tuner(trainer).scale_batch_size(model, mode=mode, steps_per_trial=1, max_trials=8)
    return int(model.batch_size)
