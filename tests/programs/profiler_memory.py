"""torch.profiler with memory: every allocation and free on the card is an event with its size."""

from __future__ import annotations

from typing import Any

from tests.programs.training import perceptron

LIBRARIES = ()
MIB = 1 << 20
# Sizes of which neither allocator gives more than asked for.
SIZES = (4096, 64 << 10, MIB, 3 * MIB, 20 * MIB, 64 * MIB)


def run(torch: Any, device: str) -> dict[str, Any]:
    activity = torch.profiler.ProfilerActivity
    wanted = [activity.CPU, activity.CUDA] if device == "cuda" else [activity.CPU]

    def profile(work: Any) -> Any:
        with torch.profiler.profile(activities=wanted, profile_memory=True) as made:
            work()
        return made

    def plain() -> None:
        kept = [torch.empty(size, dtype=torch.uint8, device=device) for size in SIZES]
        while kept:
            kept.pop()

    model = perceptron(torch, device)
    inputs = torch.randn(64, 256).to(device)

    def step() -> None:
        loss = model(inputs).square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None

    step()
    sizes = events(torch, profile(plain), device)
    assert sizes == [*SIZES, *(-size for size in reversed(SIZES))], sizes
    trained = profile(step)
    sizes = events(torch, trained, device)
    table = {row.key: row for row in trained.key_averages()}
    name = "self_device_memory_usage" if device == "cuda" else "self_cpu_memory_usage"
    return {
        "allocations": sum(size > 0 for size in sizes),
        "frees": sum(size < 0 for size in sizes),
        "left": sum(sizes),
        "by operator": {
            key: getattr(row, name) > 0
            for key, row in sorted(table.items())
            if key.startswith("aten::")  # not the driver's calls, which differ
        },
    }


def events(torch: Any, profile: Any, device: str) -> list[int]:
    """Return the bytes of each event of the device's memory, in order; a free's are negative."""
    kinds = torch._C._autograd.DeviceType
    kind = kinds.CUDA if device == "cuda" else kinds.CPU
    found = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == kind
    ]
    return [size for _, size in sorted(found, key=lambda event: event[0])]
