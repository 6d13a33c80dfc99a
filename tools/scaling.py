#!/usr/bin/env python3
"""The tables of docs/scaling.md: bytes, time and memory of a training step of FLUX.1-dev for each sharding strategy.
Its formulas are stated there. Bandwidths of your own machines:
    flowshard launch --nproc_per_node gpu -- bench collectives --json > one_host.json
    tools/scaling.py --bandwidths one_host.json"""
import argparse
import json
import math
from types import SimpleNamespace

ROOT, DOUBLE, SINGLE = 64_124_992, 339_831_296, 141_591_808  # parameters: outside the blocks, of a block of each kind
PARAMETERS = ROOT + 19 * DOUBLE + 38 * SINGLE
GROUPS = 1 + 19 + 38  # gathered and reduced one at a time
GIB = 2**30
ACTIVATIONS = {"none": 29.6 * GIB, "full": 2.1 * GIB}  # of a sample at 1024x1024, docs/memory.md
STRATEGIES = ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard"]


def shards(strategy, gpus, machine):
    """Ranks that hold one model together."""
    return {"no_shard": 1, "hybrid_shard": min(gpus, machine.gpus_per_host)}.get(strategy, gpus)


def hop_seconds(ranks, hosts, machine):
    """Once around a ring of `ranks` on `hosts`."""
    return ((ranks - hosts) * machine.nvlink_hop_us + (hosts - 1) * machine.network_hop_us) * 1e-6


def bus_bandwidth(inside, hosts, ranks_of_host, machine):
    """Bytes a second, `inside` a host; between hosts the network cards of the ranks of a host carry one ring each."""
    return inside if hosts == 1 else min(inside, ranks_of_host * machine.nic)


def communication(strategy, gpus, machine):
    """Bytes that a rank sends in a step of one pass, over NVLink rings or rings of all ranks, and between replicas;
    seconds of both, one collective after another."""
    s = shards(strategy, gpus, machine)
    r = gpus // s
    own_hosts = math.ceil(s / machine.gpus_per_host)  # of the ranks that share a model
    gathers = 1 if strategy == "shard_grad_op" else 2
    part = (s - 1) / s
    gathered, reduced = gathers * 2 * PARAMETERS * part, machine.reduce_bytes * PARAMETERS * part
    in_host = min(s, machine.gpus_per_host)
    seconds = (gathered / bus_bandwidth(machine.all_gather, own_hosts, in_host, machine)
               + reduced / bus_bandwidth(machine.reduce_scatter, own_hosts, in_host, machine)
               + (gathers + 1) * GROUPS * hop_seconds(s, own_hosts, machine))
    replicated = 0
    if r > 1:
        replicated = 2 * machine.reduce_bytes * PARAMETERS / s * (r - 1) / r
        # A ring of replicas has one rank of a host (hybrid_shard) or all of them (no_shard).
        hosts = math.ceil(gpus / machine.gpus_per_host)
        ranks_of_host = r // hosts
        seconds += (replicated / bus_bandwidth(machine.reduce_scatter, hosts, ranks_of_host, machine)
                    + 2 * GROUPS * hop_seconds(r, hosts, machine))
    return SimpleNamespace(sharded=gathered + reduced, replicated=replicated, seconds=seconds)


def optimizer_seconds(strategy, gpus, machine):
    """Parameter and moments are read and written, the gradient is read here and for its norm: 32 bytes in fp32."""
    return 32 * PARAMETERS / shards(strategy, gpus, machine) / machine.memory


def step_seconds(strategy, gpus, compute, machine):
    """Communication runs beside the computation."""
    return max(compute, communication(strategy, gpus, machine).seconds) + optimizer_seconds(strategy, gpus, machine)


def memory_bytes(strategy, gpus, batch, checkpointing, machine):
    """Of a GPU, without the libraries' own: fp32 master, gradient and moments, bf16 parameters in use, gradients in
    buffers, activations."""
    s = shards(strategy, gpus, machine)
    in_use = ROOT + 2 * DOUBLE
    gathered = PARAMETERS if strategy == "shard_grad_op" else in_use
    buffers = 0 if s == 1 else machine.reduce_bytes * in_use
    return 16 * PARAMETERS / s + 2 * gathered + buffers + batch * ACTIVATIONS[checkpointing]


def largest_hidden(strategy, compute, machine, most=65_536):
    """The most GPUs, in whole hosts, at which communication is still hidden; None: more than `most`; 0: never."""
    last = 0
    for gpus in range(machine.gpus_per_host, most + 1, machine.gpus_per_host):
        if communication(strategy, gpus, machine).seconds > compute:
            return last
        last = gpus
    return None


def print_tables(machine):
    # batch, checkpointing, seconds of forward and backward: a recomputed forward is a third more
    settings = [(1, "none", machine.sample), (4, "full", 4 * machine.sample * 4 / 3)]
    print("| strategy | GPUs | sent in rings of a model, GB | sent between replicas, GB | seconds |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for strategy in STRATEGIES:
        for gpus in (8, 64, 1024):
            c = communication(strategy, gpus, machine)
            print(f"| {strategy} | {gpus} | {c.sharded / 1e9:.1f} | {c.replicated / 1e9:.1f} | {c.seconds:.3f} |")
    for batch, checkpointing, compute in settings:
        print(f"\nBatch {batch} a GPU, activation checkpointing {checkpointing}, compute {compute:.3f} s:\n")
        print("| strategy | GPUs | memory, GiB | step, s | samples/s | share of compute | hidden up to |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        for strategy in STRATEGIES:
            bound = largest_hidden(strategy, compute, machine)
            hidden = "65,536 and more" if bound is None else f"{bound:,} GPUs" if bound else "never"
            for gpus in (8, 64, 1024):
                step = step_seconds(strategy, gpus, compute, machine)
                memory = memory_bytes(strategy, gpus, batch, checkpointing, machine)
                over = " (too much)" if memory > machine.gpu_memory else ""
                print(f"| {strategy} | {gpus} | {memory / GIB:.1f}{over} | {step:.3f} | {gpus * batch / step:.1f} | "
                      f"{100 * compute / step:.0f} % | {hidden} |")


def measured(path):
    """Bus bandwidths at the largest size of a report of flowshard bench collectives."""
    rows = json.load(open(path))["results"]
    best = {row["operation"]: row for row in sorted(rows, key=lambda row: row["bytes"])}
    return {name: best[name]["bus_bytes_per_second"] / 1e9 for name in ("all_gather", "reduce_scatter")}


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidths", help="report of flowshard bench collectives --json on one host")
    parser.add_argument("--all-gather", type=float, default=270, help="bus bandwidth within a host, GB/s (270)")
    parser.add_argument("--reduce-scatter", type=float, default=265, help="the same (265)")
    parser.add_argument("--nic", type=float, default=50, help="network of a GPU, GB/s (50: 400 Gb/s)")
    parser.add_argument("--gpus-per-host", type=int, default=8)
    parser.add_argument("--nvlink-hop-us", type=float, default=3.4)
    parser.add_argument("--network-hop-us", type=float, default=14)
    parser.add_argument("--memory", type=float, default=3400, help="of the optimizer step, GB/s (3400)")
    parser.add_argument("--gpu-memory", type=float, default=139, help="of one GPU that tensors can take, GiB (139)")
    parser.add_argument("--sample", type=float, default=0.443, help="forward and backward of one sample, s (0.443)")
    parser.add_argument("--reduce-bytes", type=int, default=4, help="of a gradient in its reduction (4: fp32)")
    machine = parser.parse_args(arguments)
    if machine.bandwidths:
        vars(machine).update(measured(machine.bandwidths))
    for name in ("all_gather", "reduce_scatter", "nic", "memory"):
        setattr(machine, name, getattr(machine, name) * 1e9)
    machine.gpu_memory *= GIB
    return machine


if __name__ == "__main__":
    print_tables(parse())
