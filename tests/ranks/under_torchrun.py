"""A program for torchrun: DDP, with `gpumem_alloc.enable()` as its only line of ours, or without.

Prints, on rank 0, the losses of all steps as exact numbers and the allocator in force.
"""

from __future__ import annotations

import os
import sys

import torch

if "ours" in sys.argv:
    import gpumem_alloc

    gpumem_alloc.enable()

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.use_deterministic_algorithms(True)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
).cuda()
trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
losses = []
for step in range(6):
    torch.manual_seed(100 * step + rank)
    numbers = torch.randn(64 * (1 + step % 3), 512, device="cuda")
    loss = trained(numbers).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    torch.distributed.all_reduce(loss.detach())
    losses.append(loss.item().hex())
if rank == 0:
    print(torch.cuda.get_allocator_backend(), *losses)
torch.distributed.destroy_process_group()
