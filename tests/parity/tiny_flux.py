"""Tiny random FLUX models in diffusers folders, for the tests: every part is random, the tokenizers are real."""
import pathlib
import shutil

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "models/quickstart"


def randomize(module, scale):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, scale)


def make_tiny_flux(folder, seed=0, guidance_embeds=True, levels=4, dynamic_shifting=True, released_kind=False):
    """Saves a random model under `folder` and returns the diffusers pipeline that it holds.

    With `released_kind` it has what FLUX.1's released files leave unsaid: heads of 128, 32 norm groups, 16 latent
    channels and their scaling."""
    torch.manual_seed(seed)
    heads = dict(attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6), in_channels=16)
    latents = dict(block_out_channels=[8, 16, 16, 32][:levels], latent_channels=4, norm_num_groups=4,
                   scaling_factor=0.7, shift_factor=0.1)
    if released_kind:
        heads = dict(attention_head_dim=128, num_attention_heads=1, axes_dims_rope=(16, 56, 56), in_channels=64)
        latents = dict(block_out_channels=[32, 32, 64, 64][:levels], latent_channels=16, norm_num_groups=32,
                       scaling_factor=0.3611, shift_factor=0.1159)
    tokenizer = CLIPTokenizer.from_pretrained(QUICKSTART / "tokenizer")
    tokenizer_2 = T5Tokenizer.from_pretrained(QUICKSTART / "tokenizer_2")
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=77, projection_dim=32, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id, hidden_act="quick_gelu")).eval()
    t5 = T5EncoderModel(T5Config(vocab_size=max(len(tokenizer_2), 128), d_model=48, d_kv=12, d_ff=64, num_layers=2,
                                 num_heads=4, feed_forward_proj="gated-gelu", is_encoder_decoder=False)).eval()
    transformer = FluxTransformer2DModel(
        patch_size=1, num_layers=2, num_single_layers=2, joint_attention_dim=48, pooled_projection_dim=32,
        guidance_embeds=guidance_embeds, **heads).eval()
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        layers_per_block=1, use_quant_conv=False, use_post_quant_conv=False, sample_size=32, **latents).eval()
    randomize(transformer, 0.06 if released_kind else 0.2)
    randomize(vae, 0.08 if released_kind else 0.12)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dynamic_shifting, base_shift=0.5, max_shift=1.15,
                                                shift=3.0 if dynamic_shifting else 1.0)
    pipeline = FluxPipeline(scheduler=scheduler, vae=vae, text_encoder=clip, tokenizer=tokenizer, text_encoder_2=t5,
                            tokenizer_2=tokenizer_2, transformer=transformer)
    pipeline.save_pretrained(folder)
    # The tokenizers' own files, as a released model has them.
    for part in ("tokenizer", "tokenizer_2"):
        shutil.rmtree(pathlib.Path(folder) / part)
        shutil.copytree(QUICKSTART / part, pathlib.Path(folder) / part)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
