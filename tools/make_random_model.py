#!/usr/bin/env python3
"""Writes a diffusers folder of FLUX.1-dev's size with random bf16 weights, to measure with: 33.7 GB. Needs a GPU,
diffusers and transformers. Tokenizers are those of the quick-start model.
    make_random_model.py FOLDER [DOUBLE SINGLE]     numbers of blocks; without weights of the transformer then
"""
import json
import pathlib
import shutil
import sys

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

VAE = {"block_out_channels": (128, 256, 512, 512), "down_block_types": ("DownEncoderBlock2D",) * 4,
       "up_block_types": ("UpDecoderBlock2D",) * 4, "layers_per_block": 2, "latent_channels": 16,
       "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}


def main():
    folder = pathlib.Path(sys.argv[1])
    quickstart = pathlib.Path(__file__).parent.parent / "models" / "quickstart"
    vocabulary = json.loads((quickstart / "text_encoder" / "config.json").read_text())
    for part in ("tokenizer", "tokenizer_2", "scheduler"):
        shutil.copytree(quickstart / part, folder / part)
    shutil.copy(quickstart / "model_index.json", folder)
    clip = CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                          num_attention_heads=12, projection_dim=768, hidden_act="quick_gelu",
                          **{key: vocabulary[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    t5 = T5Config(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
                  feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    parts = {"transformer": lambda: FluxTransformer2DModel(guidance_embeds=True),
             "text_encoder": lambda: CLIPTextModel(clip), "text_encoder_2": lambda: T5EncoderModel(t5),
             "vae": lambda: AutoencoderKL(**VAE)}
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    for name, make in parts.items():
        if name == "transformer" and len(sys.argv) > 2:
            blocks = {"num_layers": int(sys.argv[2]), "num_single_layers": int(sys.argv[3])}
            with torch.device("meta"):
                FluxTransformer2DModel(guidance_embeds=True, **blocks).save_config(folder / name)
            continue
        with torch.device("cuda"), torch.no_grad():
            model = make()
            if name != "vae":  # where the values are those of a convolution's own initialisation
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(0, 0.02)
        model.save_pretrained(folder / name, max_shard_size="10GB")
        del model
        torch.cuda.empty_cache()


main()
