"""Training in PyTorch, as a program for torchrun: diffusers' transformer, FSDP2, torch.optim.AdamW, clip_grad_norm_.

fsdp2_training.py SETTINGS.json: {"transformer": folder, "batches": file for each rank, "num_steps", "lr", "betas", "eps",
"weight_decay", "max_grad_norm", "guidance", "grid": [rows, columns] of tokens, "device", "output": file for loss and norm}
"""
import json
import os
import sys

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard

settings = json.load(open(sys.argv[1]))
torch.set_num_threads(1)
dist.init_process_group("gloo" if settings["device"] == "cpu" else "nccl")
world, rank = dist.get_world_size(), dist.get_rank()
device = "cpu" if settings["device"] == "cpu" else f"cuda:{rank}"
torch.set_default_device(device)
batches = load_file(settings["batches"][rank], device)
model = FluxTransformer2DModel.from_pretrained(settings["transformer"]).to(device).train()
for blocks in (model.transformer_blocks, model.single_transformer_blocks):
    for block in blocks:
        fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], betas=settings["betas"], eps=settings["eps"],
                              weight_decay=settings["weight_decay"])
rows, columns = settings["grid"]
img_ids = torch.zeros(rows * columns, 3)
img_ids[:, 1] = torch.arange(rows).repeat_interleave(columns)
img_ids[:, 2] = torch.arange(columns).repeat(rows)

records = []
for step in range(settings["num_steps"]):
    x0, noise, t, txt, y = (batches[f"{name}.{step}"] for name in ("x0", "noise", "t", "txt", "y"))
    x_t = (1 - t.view(-1, 1, 1)) * x0 + t.view(-1, 1, 1) * noise
    velocity = model(hidden_states=x_t, timestep=t, guidance=torch.full_like(t, settings["guidance"]),
                     encoder_hidden_states=txt, pooled_projections=y, txt_ids=torch.zeros(txt.shape[1], 3),
                     img_ids=img_ids, return_dict=False)[0]
    loss = torch.nn.functional.mse_loss(velocity, noise - x0)
    optimizer.zero_grad()
    loss.backward()  # FSDP2 takes the mean over ranks
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    records.append({"loss": mean.item() / world, "grad_norm": norm.full_tensor().item()})
if rank == 0:
    with open(settings["output"], "w") as output:
        json.dump(records, output)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # threads that PyTorch leaves behind can end the interpreter's own exit with SIGABRT
