"""A DataLoader with forked workers, pinned memory, and copies that the host does not wait for."""

from __future__ import annotations

from typing import Any

from tests.programs.training import image_network, train

LIBRARIES = ()
STEPS = 12


def run(torch: Any, device: str) -> dict[str, Any]:
    class Images(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4 * STEPS

        def __getitem__(self, index: int) -> tuple[Any, int]:
            made = torch.Generator().manual_seed(index)
            return torch.randn(3, 32, 32, generator=made), index % 10

    model = image_network(torch, device)  # CUDA has started before the workers are forked
    loader = torch.utils.data.DataLoader(
        Images(), batch_size=4, num_workers=2, pin_memory=device == "cuda",
        persistent_workers=True, prefetch_factor=4,
    )  # fmt: skip
    losses = []
    copies = torch.cuda.Stream() if device == "cuda" else None
    for _ in range(2):
        batches = iter(loader)

        def loss_of(_: int, batches: Any = batches) -> Any:
            images, labels = fetch(torch, next(batches), device, copies)
            return torch.nn.functional.cross_entropy(model(images), labels)

        losses += train(torch, model, loss_of, STEPS)
    return {"losses": losses}


def fetch(torch: Any, batch: Any, device: str, copies: Any) -> list[Any]:
    """Copy a batch on a stream of its own, as prefetchers do."""
    if copies is None:
        return [each.to(device) for each in batch]
    with torch.cuda.stream(copies):
        moved = [each.to(device, non_blocking=True) for each in batch]
    torch.cuda.current_stream().wait_stream(copies)
    for each in moved:
        each.record_stream(torch.cuda.current_stream())
    return moved
