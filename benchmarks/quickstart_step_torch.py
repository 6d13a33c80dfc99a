"""One optimizer step of configs/quickstart.toml in PyTorch with diffusers' transformer: the peer of `flowshard train`.

torchrun --nproc_per_node 2 benchmarks/quickstart_step_torch.py [ddp|fsdp2]      (or plain python: one process)
Latents and text are precomputed random tensors of the right shapes; 32 samples a step in all. Prints the median step.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from torch.distributed.fsdp import fully_shard

mode = sys.argv[1] if len(sys.argv) > 1 else "ddp"
world = int(os.environ.get("WORLD_SIZE", 1))
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
torch.manual_seed(0)
if world > 1:
    dist.init_process_group("gloo")
model = FluxTransformer2DModel(in_channels=64, num_layers=2, num_single_layers=4, attention_head_dim=24,
                               num_attention_heads=4, joint_attention_dim=64, pooled_projection_dim=64,
                               guidance_embeds=True, axes_dims_rope=(4, 10, 10))
if world > 1 and mode == "fsdp2":
    for blocks in (model.transformer_blocks, model.single_transformer_blocks):
        for block in blocks:
            fully_shard(block)
    fully_shard(model)
elif world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
average = [p.detach().clone() for p in model.parameters()]

batch = 32 // world
x0 = torch.randn(batch, 16, 64)
inputs = dict(encoder_hidden_states=torch.randn(batch, 12, 64), pooled_projections=torch.randn(batch, 64),
              txt_ids=torch.zeros(12, 3),
              img_ids=torch.stack([torch.zeros(16), torch.arange(16) // 4, torch.arange(16) % 4], -1).float())


def step():
    noise, t = torch.randn_like(x0), torch.sigmoid(0.5 + torch.randn(batch))
    x_t = (1 - t.view(-1, 1, 1)) * x0 + t.view(-1, 1, 1) * noise
    velocity = model(hidden_states=x_t, timestep=t, guidance=torch.ones(batch), return_dict=False, **inputs)[0]
    loss = (velocity - (noise - x0)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(average, list(model.parameters()), 0.002)
    return loss.item()


times = []
for i in range(60):
    begin = time.perf_counter()
    step()
    times.append(time.perf_counter() - begin)
times = times[10:]
if int(os.environ.get("RANK", 0)) == 0:
    print(f"torch {mode if world > 1 else 'one process'}: world {world}, threads {torch.get_num_threads()}: "
          f"median {1e3 * statistics.median(times):.1f} ms, min {1e3 * min(times):.1f}, max {1e3 * max(times):.1f}")
if world > 1:
    dist.destroy_process_group()
