"""Times training of diffusers' FLUX.1-dev transformer with random weights at 1024x1024, as `flowshard bench step` does
for ours. Prints one JSON object.
    flux_training_diffusers.py [--batch B] [--checkpointing] [--compile]
        forward and backward on one GPU, parameters and gradients in bf16
    torchrun --nproc_per_node=N flux_training_diffusers.py --fsdp [...]
        an optimizer step of a full fine-tuning: FSDP2, fp32 masters, computing in bf16, reduction in fp32, AdamW, clipping
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

WARM_UP, STEPS = 2, 5
parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--blocks", type=int, nargs=2, default=(19, 38), metavar=("DOUBLE", "SINGLE"))
options = parser.parse_args()


def make_model():
    with torch.device("meta"):
        model = FluxTransformer2DModel(num_layers=options.blocks[0], num_single_layers=options.blocks[1],
                                       guidance_embeds=True)
    for blocks in (model.transformer_blocks, model.single_transformer_blocks):
        for i, block in enumerate(blocks):
            if options.checkpointing:
                block = blocks[i] = checkpoint_wrapper(block)
            if options.compile:
                block.compile()
            if options.fsdp:
                fully_shard(block, mp_policy=policy)
    if options.fsdp:
        fully_shard(model, mp_policy=policy)
    else:
        model.to(torch.bfloat16)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own = parameter.to_local() if options.fsdp else parameter
            own.fill_(1) if "norm_" in name and parameter.dim() == 1 else own.normal_(0, 0.02)
    return model.train()


def make_inputs():
    side = 64
    ids = torch.zeros(side, side, 3, device="cuda")
    ids[..., 1] = torch.arange(side, device="cuda")[:, None]
    ids[..., 2] = torch.arange(side, device="cuda")
    randn = lambda *shape: torch.randn(options.batch, *shape, device="cuda", dtype=torch.bfloat16)
    return {"hidden_states": randn(side * side, 64), "encoder_hidden_states": randn(512, 4096),
            "pooled_projections": randn(768), "timestep": torch.full((options.batch,), 0.5, device="cuda"),
            "guidance": torch.full((options.batch,), 3.5, device="cuda"),
            "txt_ids": torch.zeros(512, 3, device="cuda"), "img_ids": ids.reshape(-1, 3), "return_dict": False}


rank, policy = 0, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
if options.fsdp:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(rank)
model = make_model()
inputs = make_inputs()
target = torch.randn(inputs["hidden_states"].shape, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if options.fsdp else None
seconds = []
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # the backward of diffusers with cuDNN attention fails
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        start = time.time()
        (model(**inputs)[0].float() - target).square().mean().backward()
        if optimizer:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.time() - start)
seconds = sorted(seconds[WARM_UP:])
if rank == 0:
    print(json.dumps({"diffusers": "fsdp2" if options.fsdp else "forward and backward", "batch": options.batch,
                      "checkpointing": options.checkpointing, "compile": options.compile,
                      "seconds": seconds[STEPS // 2], "low": seconds[0], "high": seconds[-1],
                      "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
                      "reserved_gib": torch.cuda.max_memory_reserved() / 2**30}))
if options.fsdp:
    dist.destroy_process_group()
