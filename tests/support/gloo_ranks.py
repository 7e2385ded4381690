"""A function run once in each of several gloo processes on this machine."""

import os

import torch
import torch.distributed as dist


def _worker(rank, function, world, folder):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    torch.save(function(rank, world), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def of_ranks(function, world, folder):
    """Return what ``function(rank, world)``, at the top level of a module, returns on each rank."""
    torch.multiprocessing.spawn(_worker, args=(function, world, str(folder)), nprocs=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
