"""models/quickstart loads in the reference packages and is what the quickstart's captions and pictures need."""
import numpy as np
import pytest
import torch
from conftest import ROOT
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from PIL import Image, ImageDraw
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer

MODEL = ROOT / "models/quickstart"
COLORS = {"red": (232, 24, 24), "green": (24, 232, 24), "blue": (24, 24, 232), "yellow": (232, 232, 24),
          "cyan": (24, 232, 232), "magenta": (232, 24, 232), "black": (24, 24, 24), "white": (232, 232, 232)}
SHAPES = ["circle", "square", "triangle"]
RELATIONS = ["left of", "right of", "above", "below"]
CAPTIONS = [f"a {color} {shape}" for color in COLORS for shape in SHAPES]
CAPTIONS += [f"{first} {relation} {second}" for first in CAPTIONS for relation in RELATIONS for second in CAPTIONS[::7]]
OTHER_TEXTS = ["", "Hello, World! 42", "reddish circles", "na\u00efve caf\u00e9", "\u4e2d\u6587", "\U0001f600",
               "a\tred\n circle"]
MAX_BYTES = 4_000_000


def draw(objects):
    """Antialiased 64x64 picture of (shape, color, x, y, radius)."""
    scale = 8
    image = Image.new("RGB", (64 * scale, 64 * scale), (128, 128, 128))
    pen = ImageDraw.Draw(image)
    for shape, color, x, y, radius in objects:
        x, y, radius = x * scale, y * scale, radius * scale
        if shape == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=COLORS[color])
        elif shape == "square":
            side = 0.875 * radius
            pen.rectangle((x - side, y - side, x + side, y + side), fill=COLORS[color])
        else:
            base = y + 0.75 * radius
            pen.polygon([(x, y - radius), (x - radius, base), (x + radius, base)], fill=COLORS[color])
    return np.asarray(image.resize((64, 64), Image.Resampling.BOX))


def pictures():
    singles = [draw([(shape, color, 30.3 + index, 33.1 - index / 2, 14.4 + index / 4)])
               for index, (shape, color) in enumerate(zip(SHAPES * 3, COLORS))]
    pairs = [draw([(SHAPES[index % 3], first, 17.4, 31.2, 11.3), (SHAPES[(index + 1) % 3], second, 46.3, 33.7, 10.2)])
             for index, (first, second) in enumerate(zip(COLORS, list(COLORS)[1:]))]
    pixels = torch.from_numpy(np.stack(singles + pairs))
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


@pytest.fixture(scope="module")
def vae():
    return AutoencoderKL.from_pretrained(MODEL / "vae").eval()


def test_fits_the_size_limit_and_names_no_machine():
    files = [path for path in MODEL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in (b"/home/", b"/root/", b"/tmp/", b"_name_or_path")), path


def test_pipeline_makes_a_picture_with_a_random_transformer():
    config = FluxTransformer2DModel.load_config(MODEL / "transformer")
    pipeline = FluxPipeline.from_pretrained(MODEL, transformer=FluxTransformer2DModel.from_config(config))
    pipeline.set_progress_bar_config(disable=True)
    image = pipeline("a red circle", height=64, width=64, num_inference_steps=1, max_sequence_length=12,
                     generator=torch.Generator().manual_seed(0), output_type="np").images[0]
    assert image.shape == (64, 64, 3)
    assert np.isfinite(image).all()


def test_no_weight_is_missing_or_left_over():
    for model, folder in [(CLIPTextModel, "text_encoder"), (T5EncoderModel, "text_encoder_2"), (AutoencoderKL, "vae")]:
        _, info = model.from_pretrained(MODEL / folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], folder


def test_every_caption_word_is_one_token():
    clip = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
    t5 = T5Tokenizer.from_pretrained(MODEL / "tokenizer_2")
    assert (t5.pad_token_id, t5.eos_token_id, t5.unk_token_id) == (0, 1, 2)
    for caption in CAPTIONS:
        words = caption.split()
        assert clip.tokenize(caption) == [word + "</w>" for word in words]
        assert t5.tokenize(caption) == ["\u2581" + word for word in words]
        assert len(t5(caption).input_ids) <= 12


def test_other_text_stays_inside_the_vocabularies():
    for tokenizer, model, folder in [(CLIPTokenizer, CLIPTextModel, ""), (T5Tokenizer, T5EncoderModel, "_2")]:
        tokenizer = tokenizer.from_pretrained(MODEL / f"tokenizer{folder}")
        size = model.from_pretrained(MODEL / f"text_encoder{folder}").config.vocab_size
        assert len(tokenizer) <= size
        for text in OTHER_TEXTS:
            assert max(tokenizer(text).input_ids) < size
    clip = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
    assert clip.decode(clip(OTHER_TEXTS[3]).input_ids, skip_special_tokens=True) == OTHER_TEXTS[3]


@torch.no_grad()
def test_pooled_vector_is_whitened():
    clip = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
    ids = clip(CAPTIONS, padding="max_length", max_length=77, return_tensors="pt").input_ids
    pooled = CLIPTextModel.from_pretrained(MODEL / "text_encoder").eval()(ids).pooler_output
    std, mean = torch.std_mean(pooled, dim=0)
    # Not exactly 1 and 0: these captions are not drawn as often as the data set draws them.
    assert std.min() > 0.5 and std.max() < 2
    assert mean.abs().max() < 1


@torch.no_grad()
def test_autoencoder_keeps_the_pictures(vae):
    images = pictures()
    latents = vae.encode(images).latent_dist.mode()
    assert latents.shape[1:] == (16, 8, 8)
    errors = (vae.decode(latents).sample.clamp(-1, 1) - images).square().mean(dim=(1, 2, 3))
    assert (10 * torch.log10(4 / errors)).min() >= 32
    scaled = (latents - vae.config.shift_factor) * vae.config.scaling_factor
    assert 0.8 < scaled.std() < 1.25 and scaled.mean().abs() < 0.2
