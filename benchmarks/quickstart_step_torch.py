"""One optimizer step of configs/quickstart.toml in PyTorch with diffusers' transformer: the peer of `flowshard train`.

torchrun --nproc_per_node 2 benchmarks/quickstart_step_torch.py ddp|fsdp2 ready|shards      (or plain python: one process)
ready: latents and text are tensors that lie in memory. shards: webdataset reads and decodes the pictures in one worker
process, as in flowshard's one loader thread, and the frozen encoders of models/quickstart encode them in each step.
32 samples a step in all. Prints the median step.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from torch.distributed.fsdp import fully_shard

mode, source = sys.argv[1:]
world = int(os.environ.get("WORLD_SIZE", 1))
batch = 32 // world
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
txt_ids = torch.zeros(12, 3)
img_ids = torch.stack([torch.zeros(16), torch.arange(16) // 4, torch.arange(16) % 4], -1).float()


def ready_batches():
    """Endless (latents, text, pooled text)."""
    tensors = torch.randn(batch, 16, 64), torch.randn(batch, 12, 64), torch.randn(batch, 64)
    while True:
        yield tensors


def batches_of_shards():
    import webdataset
    from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer
    folder = "models/quickstart"
    clip_tokenizer = CLIPTokenizer.from_pretrained(folder, subfolder="tokenizer")
    t5_tokenizer = T5Tokenizer.from_pretrained(folder, subfolder="tokenizer_2")
    clip = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder")
    t5 = T5EncoderModel.from_pretrained(folder, subfolder="text_encoder_2")
    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    samples = webdataset.WebDataset("data/quickstart/shapes-{000000..000007}.tar", shardshuffle=False,
                                    nodesplitter=webdataset.split_by_node, workersplitter=None)
    samples = samples.decode("torchrgb").to_tuple("png", "txt").batched(batch, partial=False)

    def ids(tokenizer, captions, length):
        return tokenizer(captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids

    for pictures, captions in torch.utils.data.DataLoader(samples, batch_size=None, num_workers=1):
        with torch.no_grad():
            latents = vae.encode(2 * pictures - 1).latent_dist.mode()
            latents = (latents - vae.config.shift_factor) * vae.config.scaling_factor
            encoded = (FluxPipeline._pack_latents(latents, *latents.shape), t5(ids(t5_tokenizer, captions, 12))[0],
                       clip(ids(clip_tokenizer, captions, 77)).pooler_output)
        yield encoded


def step(batches):
    x0, txt, y = next(batches)
    noise, t = torch.randn_like(x0), torch.sigmoid(0.5 + torch.randn(batch))
    x_t = (1 - t.view(-1, 1, 1)) * x0 + t.view(-1, 1, 1) * noise
    velocity = model(hidden_states=x_t, timestep=t, guidance=torch.ones(batch), encoder_hidden_states=txt,
                     pooled_projections=y, txt_ids=txt_ids, img_ids=img_ids, return_dict=False)[0]
    loss = (velocity - (noise - x0)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(average, list(model.parameters()), 0.002)
    return loss.item()


times = []
batches = ready_batches() if source == "ready" else batches_of_shards()
for i in range(60):
    begin = time.perf_counter()
    step(batches)
    times.append(1e3 * (time.perf_counter() - begin))
times = times[10:]
if int(os.environ.get("RANK", 0)) == 0:
    print(f"torch: median {statistics.median(times):.1f} ms, min {min(times):.1f}, "
          f"max {max(times):.1f}")
if world > 1:
    dist.destroy_process_group()
