"""State dicts with the keys of the official FLUX code from those of diffusers, and diffusers' own way back.

The way back is diffusers' single-file loader: every state dict made here is checked against it."""
import inspect
import re

import torch
from diffusers.loaders import single_file_utils


def diffusers_transformer(official, hidden):
    """What diffusers makes of official keys. Its function knows the hidden size of the released model only."""
    name = "convert_flux_transformer_checkpoint_to_diffusers"
    source = inspect.getsource(getattr(single_file_utils, name))
    assert source.count("inner_dim = 3072") == 1
    scope = {"torch": torch}
    exec(source.replace("inner_dim = 3072", f"inner_dim = {hidden}"), scope)
    return scope[name](dict(official))


def diffusers_autoencoder(official, config):
    return single_file_utils.convert_ldm_vae_checkpoint(dict(official), dict(config))


def official_transformer(diffusers_state, hidden):
    state = dict(diffusers_state)
    result = {}

    def fuse(target, sources):
        for kind in ("weight", "bias"):
            result[f"{target}.{kind}"] = torch.cat([state.pop(f"{source}.{kind}") for source in sources])

    def move(target, source):
        for kind in ("weight", "bias"):
            result[f"{target}.{kind}"] = state.pop(f"{source}.{kind}")

    def norms(target, query, key):
        result[f"{target}.query_norm.scale"] = state.pop(f"{query}.weight")
        result[f"{target}.key_norm.scale"] = state.pop(f"{key}.weight")

    move("img_in", "x_embedder")
    move("txt_in", "context_embedder")
    for ours, theirs in (("time_in", "timestep"), ("vector_in", "text"), ("guidance_in", "guidance")):
        if f"time_text_embed.{theirs}_embedder.linear_1.weight" in state:
            move(f"{ours}.in_layer", f"time_text_embed.{theirs}_embedder.linear_1")
            move(f"{ours}.out_layer", f"time_text_embed.{theirs}_embedder.linear_2")
    for i in {int(key.split(".")[1]) for key in state if key.startswith("transformer_blocks.")}:
        block, attn = f"transformer_blocks.{i}", f"transformer_blocks.{i}.attn"
        for stream, modulation, qkv, query, key, proj, mlp in (
                ("img", "norm1", ["to_q", "to_k", "to_v"], "norm_q", "norm_k", "to_out.0", "ff"),
                ("txt", "norm1_context", ["add_q_proj", "add_k_proj", "add_v_proj"], "norm_added_q", "norm_added_k",
                 "to_add_out", "ff_context")):
            target = f"double_blocks.{i}.{stream}"
            move(f"{target}_mod.lin", f"{block}.{modulation}.linear")
            fuse(f"{target}_attn.qkv", [f"{attn}.{part}" for part in qkv])
            norms(f"{target}_attn.norm", f"{attn}.{query}", f"{attn}.{key}")
            move(f"{target}_attn.proj", f"{attn}.{proj}")
            move(f"{target}_mlp.0", f"{block}.{mlp}.net.0.proj")
            move(f"{target}_mlp.2", f"{block}.{mlp}.net.2")
    for i in {int(key.split(".")[1]) for key in state if key.startswith("single_transformer_blocks.")}:
        block, target = f"single_transformer_blocks.{i}", f"single_blocks.{i}"
        move(f"{target}.modulation.lin", f"{block}.norm.linear")
        fuse(f"{target}.linear1", [f"{block}.attn.to_q", f"{block}.attn.to_k", f"{block}.attn.to_v",
                                   f"{block}.proj_mlp"])
        move(f"{target}.linear2", f"{block}.proj_out")
        norms(f"{target}.norm", f"{block}.attn.norm_q", f"{block}.attn.norm_k")
    for kind in ("weight", "bias"):
        scale, shift = state.pop(f"norm_out.linear.{kind}").chunk(2)
        result[f"final_layer.adaLN_modulation.1.{kind}"] = torch.cat([shift, scale])
    move("final_layer.linear", "proj_out")
    assert not state, sorted(state)
    result = {key: tensor.contiguous().clone() for key, tensor in result.items()}
    assert_same(diffusers_transformer(result, hidden), diffusers_state)
    return result


def official_autoencoder(state, config):
    levels = len(config["block_out_channels"])
    result = {}
    for key, tensor in state.items():
        key = re.sub(r"down_blocks\.(\d+)\.resnets", r"down.\1.block", key)
        key = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", key)
        key = re.sub(r"up_blocks\.(\d+)\.resnets", lambda m: f"up.{levels - 1 - int(m[1])}.block", key)
        key = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"up.{levels - 1 - int(m[1])}.upsample", key)
        key = key.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        if "mid_block.attentions.0" in key:
            for theirs, ours in (("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"),
                                 ("to_out.0", "proj_out")):
                key = key.replace(f"mid_block.attentions.0.{theirs}.", f"mid.attn_1.{ours}.")
            if tensor.dim() == 2:
                tensor = tensor[:, :, None, None]
        key = key.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        result[key] = tensor.contiguous().clone()
    assert_same(diffusers_autoencoder(result, config), state)
    return result


def assert_same(left, right):
    """The same keys and the same bytes."""
    assert sorted(left) == sorted(right)
    for key in left:
        assert left[key].dtype == right[key].dtype and left[key].shape == right[key].shape, key
        assert torch.equal(left[key].contiguous().view(-1).view(torch.uint8),
                           right[key].contiguous().view(-1).view(torch.uint8)), key
