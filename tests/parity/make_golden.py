"""Makes tests/parity/data/golden_transformer/: a tiny random transformer in a diffusers folder, inputs, and what every
block of diffusers 0.42.1 returned for them. Run it only to replace the data: python tests/parity/make_golden.py"""
import pathlib

import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import save_file
from test_transformer import reference

FOLDER = pathlib.Path(__file__).parent / "data/golden_transformer"

torch.manual_seed(20)
model = FluxTransformer2DModel(patch_size=1, in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=8,
                               num_attention_heads=2, joint_attention_dim=12, pooled_projection_dim=6,
                               guidance_embeds=True, axes_dims_rope=(2, 2, 4)).eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_(0, 0.2)
model.save_pretrained(FOLDER)
ids = torch.zeros(3, 5, 3)
ids[..., 1] += torch.arange(3)[:, None]
ids[..., 2] += torch.arange(5)[None, :]
inputs = dict(img=torch.randn(2, 15, 8), img_ids=ids.reshape(-1, 3), txt=torch.randn(2, 4, 12), y=torch.randn(2, 6),
              timesteps=torch.tensor([0.25, 0.9]), guidance=torch.tensor([1.0, 3.5]))
save_file(inputs, FOLDER / "inputs.st")
save_file({key: value.contiguous() for key, value in reference(model, inputs).items()}, FOLDER / "outputs.st")
