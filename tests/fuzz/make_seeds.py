"""Writes small good inputs of each fuzzer into FOLDER/FUZZER: usage make_seeds.py FOLDER."""
import base64
import io
import json
import pathlib
import struct
import sys

import torch
from PIL import Image, ImageCms, PngImagePlugin
from safetensors.torch import save

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/quickstart"

# A trie that turns "a" into an accented letter.
CHARSMAP = struct.pack("<I3I", 12, 0x60 << 10, 0x61 | 1 << 8 | 3 << 10, 1 << 31) + "\u00e9\0".encode()


def pictures():
    image = Image.linear_gradient("L").resize((9, 7)).convert("RGB")
    alpha = image.copy()
    alpha.putalpha(image.convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = '{"flowshard": "0.1.0"}'
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    extra = {"exif": exif, "icc_profile": profile}
    kinds = {"rgb": image, "rgba": alpha, "grey": image.convert("L"), "bit": image.convert("1"),
             "palette": image.quantize(4), "grey_alpha": alpha.convert("LA"),
             "grey16": image.convert("L").convert("I").point(lambda value: value * 257).convert("I;16")}
    cases = [(f"{name}.png", kind, {}) for name, kind in kinds.items()]
    text = PngImagePlugin.PngInfo()
    text.add_text("Description", "a text")
    text.add_itxt("Title", "caf\u00e9", zip=True)
    cases += [("text.png", image, {"pnginfo": text}), ("extra.png", image, extra), ("key.png", kinds["palette"], {"transparency": 1}),
              ("rgb.jpg", image, {}), ("grey.jpg", kinds["grey"], {}), ("cmyk.jpg", image.convert("CMYK"), {}),
              ("progressive.jpg", image, {"progressive": True}), ("extra.jpg", image, extra),
              ("lossy.webp", image, {}), ("lossless.webp", image, {"lossless": True}),
              ("alpha.webp", alpha, {"lossless": True}), ("extra.webp", image, extra),
              ("animation.webp", image, {"save_all": True, "append_images": [image.rotate(90)]})]
    for name, kind, options in cases:
        data = io.BytesIO()
        kind.save(data, {"jpg": "JPEG"}.get(name.rpartition(".")[2], name.rpartition(".")[2]), **options)
        yield name, data.getvalue()


def prompts():
    for i, text in enumerate(["a red circle left of a blue square", "R\u00e9sum\u00e9 na\u0131\u0308ve \u00c9T\u00c9 12,345.6",
                              "<|startoftext|>cat's<|endoftext|> </s><pad> <extra_id_0>", "\u6771\u4eac \u0627\u0644\u0639 \u0301",
                              "\U0001f468\u200d\U0001f469\u200d\U0001f467 \ufb01\u0301 \u2581\u3000\u00a0\t\n", "{}[]()\"'\\ 's 'll"]):
        yield str(i), text.encode()


def spiece_model():
    """A few pieces and a map of characters, as sentencepiece_model.proto has them."""
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def piece(text, kind):
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -1.5) + bytes([0x18, kind]))

    pieces = [("<pad>", 3), ("</s>", 3), ("<unk>", 2), ("\u2581", 1), ("\u2581a", 1), ("re", 1), ("<mine>", 4)]
    return b"".join(piece(*each) for each in pieces) + field(3, field(2, CHARSMAP))


def tokenizer_files():
    vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2, "a</w>": 3, "r": 4, "e": 5, "d</w>": 6, "re": 7,
                  "red</w>": 8, "\u00c3": 9, "\u00a9</w>": 10}
    merges = ["r e", "re d</w>"]
    token = {"content": "<new>", "lstrip": True, "rstrip": True, "single_word": True, "normalized": True, "special": False}
    decoder = {"added_tokens_decoder": {"0": token, "7": token}, "pad_token": {**token, "content": "</s>"}, "extra_ids": 3,
               "additional_special_tokens": ["<x>", token], "unk_token": "<unk>"}
    clip = {"added_tokens": [{"id": len(vocabulary), **token}], "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    charsmap = base64.b64encode(CHARSMAP).decode()
    t5 = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap}]},
          "added_tokens": [{"id": 0, **token}],
          "model": {"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581a", -2.5]]}}
    contents = {"vocab.json": json.dumps(vocabulary), "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
                "tokenizer.json": json.dumps(clip), "tokenizer_config.json": json.dumps(decoder),
                "special_tokens_map.json": json.dumps(decoder), "added_tokens.json": '{"<x>": 700, "</s>": 1}'}
    contents_2 = {"spiece.model": spiece_model(), "tokenizer.json": json.dumps(t5), "tokenizer_config.json": json.dumps(decoder)}
    for number, content in enumerate([*contents.values(), *contents_2.values()]):  # as the fuzzer numbers them
        yield str(number), bytes([number]) + (content if isinstance(content, bytes) else content.encode())
    for number, name in {3: "tokenizer/tokenizer_config.json", 4: "tokenizer/special_tokens_map.json",
                         8: "tokenizer_2/tokenizer_config.json"}.items():
        yield name.replace("/", "_"), bytes([number]) + (MODEL / name).read_bytes()


def configurations():
    for path in MODEL.rglob("*config.json"):
        yield path.parent.name, path.read_bytes()
    yield "model_index", (MODEL / "model_index.json").read_bytes()


def safetensors():
    dtypes = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
    tensors = {str(dtype): torch.ones(2, 3).to(dtype) for dtype in dtypes}
    yield "dtypes", save(tensors, {"format": "pt"})
    yield "empty", save({"a": torch.ones(0), "b": torch.ones(2, 0), "c": torch.ones(())})
    yield "metadata", save({}, {"key": "value"})


for name, inputs in {"picture": pictures, "prompt": prompts, "tokenizer_files": tokenizer_files,
                     "configuration": configurations, "safetensors": safetensors}.items():
    folder = pathlib.Path(sys.argv[1]) / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed, content in inputs():
        (folder / seed).write_bytes(content)
