"""Times one forward of diffusers' FLUX.1-dev transformer with random bf16 weights on one GPU, as
flow_transformer_bench does for ours: eager with cuDNN attention, and compiled (fused qkv, compile_repeated_blocks).
    flow_transformer_diffusers.py [SIDE...]
"""
import sys
import time

import torch
from diffusers import FluxTransformer2DModel
from torch.nn.attention import SDPBackend, sdpa_kernel

RUNS, WARM_UP = 20, 3


def inputs(side):
    rows = side // 16
    ids = torch.zeros(rows, rows, 3, device="cuda")
    ids[..., 1] = torch.arange(rows, device="cuda")[:, None]
    ids[..., 2] = torch.arange(rows, device="cuda")
    randn = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    return {"hidden_states": randn(1, rows * rows, 64), "encoder_hidden_states": randn(1, 512, 4096),
            "pooled_projections": randn(1, 768), "timestep": torch.full((1,), 0.5, device="cuda", dtype=torch.bfloat16),
            "guidance": torch.full((1,), 3.5, device="cuda"), "txt_ids": torch.zeros(512, 3, device="cuda"),
            "img_ids": ids.reshape(-1, 3), "return_dict": False}


def measure(name, transformer, side):
    keywords = inputs(side)
    times = []
    for run in range(-WARM_UP, RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        transformer(**keywords)
        end.record()
        end.synchronize()
        if run >= 0:
            times.append(begin.elapsed_time(end))
    times.sort()
    print(f"diffusers {name} {side}x{side}: {times[RUNS // 2]:.2f} ms a step (10th to 90th percentile "
          f"{times[RUNS // 10]:.2f} to {times[RUNS * 9 // 10]:.2f})", flush=True)


@torch.no_grad()
def main():
    sides = [int(side) for side in sys.argv[1:]] or [1024, 512]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        transformer = FluxTransformer2DModel(guidance_embeds=True).eval()
    torch.set_default_dtype(torch.float32)
    for parameter in transformer.parameters():
        parameter.normal_(0, 0.02)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for side in sides:
            measure("eager", transformer, side)
        transformer.fuse_qkv_projections()
        transformer.compile_repeated_blocks(fullgraph=True)
        for side in sides:
            start = time.time()
            transformer(**inputs(side))
            torch.cuda.synchronize()
            print(f"compiled for {side}x{side} in {time.time() - start:.0f} s")
            measure("compiled", transformer, side)


main()
