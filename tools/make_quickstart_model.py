#!/usr/bin/env python3
"""Makes models/quickstart: the frozen base model, in diffusers' layout, that the quickstart trains on.

    build/release/flowshard dataset shapes --output data/shapes
    tools/make_quickstart_model.py --data data/shapes --output models/quickstart

The tokenizers know each word of the captions as one token. The text encoders are random: training a flow transformer
on them shows every part of the program at work without a download. Only the autoencoder is trained, on the pictures
of the data set. The transformer is a configuration without weights: training starts it at random.

Needs the packages of requirements-test.txt. Takes 1 minute on a data-center GPU, about 10 on two idle CPU cores. The
same seed and package versions give the same tokenizers and text encoders; the autoencoder differs between machines.
"""
import argparse
import collections
import io
import itertools
import json
import math
import pathlib
import tarfile
import time

import numpy as np
import sentencepiece
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from PIL import Image
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

CLIP_WIDTH = 64
T5_WIDTH = 64
# The relative position that each T5 head looks at. FLUX gives text tokens no positions of their own, so all that the
# transformer learns about word order comes from here. Distances up to 7 have a bucket to themselves.
T5_HEAD_OFFSETS = (-1, 1, -2, 2, -3, 3, -5, 5)
T5_HEAD_BIAS = 8.0
T5_BUCKETS = 32
HELD_BACK = 256  # pictures that measure the autoencoder and never train it


def read_data(folder):
    """All pictures, uint8 [N, H, W, 3], and their captions, in the order of the tars."""
    pictures, captions = {}, {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, extension = member.name.partition(".")
                if extension == "png":
                    pictures[path.name, key] = np.asarray(Image.open(tar.extractfile(member)).convert("RGB"))
                elif extension == "txt":
                    captions[path.name, key] = tar.extractfile(member).read().decode().strip()
    if not pictures or pictures.keys() != captions.keys():
        raise SystemExit(f"{folder}: need *.tar with a .png and a .txt for each sample")
    return np.stack(list(pictures.values())), [captions[key] for key in pictures]


def count_words(captions):
    """Words by falling frequency, ties by alphabet."""
    counts = collections.Counter(word for caption in captions for word in caption.split())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def byte_letters():
    """GPT-2's printable stand-in for each byte, in the order of CLIP's vocabulary: printable bytes first."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def byte_pair_merges(counts):
    """Byte-pair encoding trained until every word is one symbol."""
    words = {word: [*word[:-1], word[-1] + "</w>"] for word in counts}
    merges = []
    while True:
        pairs = collections.Counter()
        for word, symbols in words.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += counts[word]
        if not pairs:
            return merges
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for symbols in words.values():
            index = 0
            while index + 1 < len(symbols):
                if (symbols[index], symbols[index + 1]) == best:
                    symbols[index : index + 2] = ["".join(best)]
                index += 1


def make_clip_tokenizer(folder, counts):
    letters = byte_letters()
    merges = byte_pair_merges(counts)
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge) for merge in merges), start, end]
    write_json(folder / "vocab.json", {token: index for index, token in enumerate(tokens)})
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    special = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json",
               {"tokenizer_class": "CLIPTokenizer", "do_lower_case": True, "model_max_length": 77, **special})


def make_t5_tokenizer(folder, counts):
    """A unigram model of the caption's words, by their log frequency, and of printable ASCII for all other text."""
    proto = io.BytesIO()
    characters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(characters), model_writer=proto, model_type="char", vocab_size=len(characters) + 4,
        character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto.FromString(proto.getvalue())
    characters = sorted(piece.piece for piece in model.pieces[3:])
    del model.pieces[3:]
    total = sum(counts.values())
    for word, count in counts.items():
        model.pieces.add(piece="\u2581" + word, score=math.log(count / total))
    rare = math.log(1 / total) - 1
    for character in characters:
        model.pieces.add(piece=character, score=rare)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = len(model.pieces)
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json",
               {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "model_max_length": 512, **special})
    (folder / "spiece.model").write_bytes(model.SerializeToString(deterministic=True))
    return len(model.pieces)


def save_text_encoder(folder, model, state):
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def make_clip_text_encoder(folder, tokenizer, captions):
    """Random, with its last norm set so that every number of the pooled vector has mean 0 and deviation 1."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=CLIP_WIDTH, intermediate_size=2 * CLIP_WIDTH, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=77, projection_dim=CLIP_WIDTH, hidden_act="quick_gelu",
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model = CLIPTextModel(config).eval()
    ids = tokenizer(captions, padding="max_length", max_length=77, return_tensors="pt").input_ids
    pooled = torch.cat([model(part).pooler_output for part in ids.split(256)])
    std, mean = torch.std_mean(pooled, dim=0)
    norm = next(module for name, module in model.named_modules() if name.endswith("final_layer_norm"))
    norm.weight.div_(std)
    norm.bias.sub_(mean).div_(std)
    # Keys as in the published FLUX folders, which every version of transformers reads.
    save_text_encoder(folder, model, {f"text_model.{name}": value for name, value in model.state_dict().items()})


@torch.no_grad()
def make_t5_text_encoder(folder, vocabulary):
    config = T5Config(
        vocab_size=vocabulary, d_model=T5_WIDTH, d_kv=8, d_ff=2 * T5_WIDTH, num_layers=2, num_heads=8,
        relative_attention_num_buckets=T5_BUCKETS, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        is_encoder_decoder=False, use_cache=False)
    model = T5EncoderModel(config).eval()
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [buckets, heads]
    bias.zero_()
    for head, offset in enumerate(T5_HEAD_OFFSETS):
        bias[abs(offset) + (T5_BUCKETS // 2 if offset > 0 else 0), head] = T5_HEAD_BIAS
    state = model.state_dict()
    del state["encoder.embed_tokens.weight"]  # the same tensor as shared.weight
    save_text_encoder(folder, model, state)


class AutoencoderLoss(torch.nn.Module):
    """Squared error of the picture made from a sampled latent, plus a little of its divergence from N(0, 1)."""

    def __init__(self, vae, kl_weight):
        super().__init__()
        self.vae = vae
        self.kl_weight = kl_weight

    def forward(self, pictures, noise):
        mean, logvar = self.vae.encoder(pictures).chunk(2, dim=1)
        logvar = logvar.clamp(-30, 20)
        error = (self.vae.decoder(mean + noise * (0.5 * logvar).exp()) - pictures).square().mean()
        return error + self.kl_weight * 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()


def to_tensor(pictures, device):
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).to(device, torch.float32) / 127.5 - 1


@torch.no_grad()
def measure(vae, pictures, device):
    """PSNR in dB of the reconstructions, then mean and deviation of the latents."""
    errors, latents = [], []
    for start in range(0, len(pictures), 256):
        batch = to_tensor(pictures[start : start + 256], device)
        latents.append(vae.encode(batch).latent_dist.mode())
        errors.append((vae.decode(latents[-1]).sample.clamp(-1, 1) - batch).square().mean(dim=(1, 2, 3)))
    latents = torch.cat(latents)
    psnr = 10 * torch.log10(4 / torch.cat(errors).mean())
    return psnr.item(), latents.mean().item(), latents.std().item()


def train_autoencoder(pictures, steps, batch_size, lr, kl_weight, device):
    vae = AutoencoderKL(
        block_out_channels=(8, 16, 32, 64), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, norm_num_groups=2, latent_channels=16,
        sample_size=pictures.shape[1], use_quant_conv=False, use_post_quant_conv=False, force_upcast=True).to(device)
    training = to_tensor(pictures[:-HELD_BACK], device)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    warm_up = min(200, steps // 10 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)) + 1e-3))
    loss_of = AutoencoderLoss(vae, kl_weight)
    latent = torch.randn(batch_size, 16, pictures.shape[1] // 8, pictures.shape[2] // 8, device=device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        loss_of = torch.cuda.make_graphed_callables(loss_of, (training[:batch_size], latent))
    started = time.monotonic()
    for step in range(steps):
        batch = training[torch.randint(len(training), (batch_size,), device=device)]
        loss = loss_of(batch, latent.normal_())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 500 == 0 or step + 1 == steps:
            psnr, _, _ = measure(vae, pictures[-HELD_BACK:], device)
            seconds = time.monotonic() - started
            print(f"autoencoder step {step + 1}/{steps}  loss {loss.item():.5f}  PSNR {psnr:.2f} dB  {seconds:.0f} s",
                  flush=True)
    return vae.eval()


def make_autoencoder(folder, pictures, options):
    device = torch.device(options.device)
    vae = train_autoencoder(pictures, options.vae_steps, options.vae_batch_size, options.vae_lr, options.vae_kl, device)
    _, mean, deviation = measure(vae, pictures, device)
    vae.register_to_config(shift_factor=round(mean, 4), scaling_factor=round(1 / deviation, 4))
    vae.to("cpu").save_pretrained(folder)
    print(f"latents: mean {mean:.4f}, deviation {deviation:.4f}")


def make_transformer_config(folder):
    FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=4, attention_head_dim=24, num_attention_heads=4,
        joint_attention_dim=T5_WIDTH, pooled_projection_dim=CLIP_WIDTH, guidance_embeds=True,
        axes_dims_rope=[4, 10, 10]).save_config(folder)


def make_scheduler(folder):
    FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000, shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15,
        base_image_seq_len=256, max_image_seq_len=4096).save_config(folder)


def make_index(folder):
    write_json(folder / "model_index.json", {
        "_class_name": "FluxPipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]})


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of WebDataset tars (.png and .txt)")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder to write; files there are replaced")
    parser.add_argument("--parts", default="text,vae", help="what to make: text, vae or both (default)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae-steps", type=int, default=2500)
    parser.add_argument("--vae-batch-size", type=int, default=32)
    parser.add_argument("--vae-lr", type=float, default=1.5e-3)
    parser.add_argument("--vae-kl", type=float, default=1e-4)
    return parser.parse_args()


def main():
    options = parse_options()
    pictures, captions = read_data(options.data)
    print(f"{len(pictures)} pictures of {pictures.shape[2]}x{pictures.shape[1]}")
    output = options.output
    if "text" in options.parts:
        torch.manual_seed(options.seed)
        counts = count_words(captions)
        make_clip_tokenizer(output / "tokenizer", counts)
        make_clip_text_encoder(output / "text_encoder", CLIPTokenizer.from_pretrained(output / "tokenizer"),
                               captions)
        vocabulary = make_t5_tokenizer(output / "tokenizer_2", counts)
        make_t5_text_encoder(output / "text_encoder_2", vocabulary)
    if "vae" in options.parts:
        torch.manual_seed(options.seed)
        make_autoencoder(output / "vae", pictures, options)
    make_transformer_config(output / "transformer")
    make_scheduler(output / "scheduler")
    make_index(output)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"wrote {output}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
