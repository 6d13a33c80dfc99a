"""Token ids of both tokenizers, against transformers."""
import gzip
import itertools
import json
import os
import pathlib
import random
import subprocess

import open_clip
import pytest
import sentencepiece
from tokenizers import AddedToken
from transformers import CLIPTokenizer, T5Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(
    os.environ.get("FLOWSHARD_TOKENIZE", ROOT / "build/release/tests/parity/flowshard_tokenize"))

PROMPTS = [
    "", " ", "   ", "\t", "\n", "\r\n", " \t\r\n \v\f ", "a", "a ", " a", "a\n", "\na",
    "a photo of a fox",
    "Hi there I'm good", "Hi there     I'm good", "Hi there\tI'm good", "Hi there\nI'm good\n",
    "r\u00e9sum\u00e9", "na\u00efve caf\u00e9", "re\u0301sume\u0301", "nai\u0308ve cafe\u0301",
    "Un petit chaton tr\u00e8s mignon", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f469\U0001f3fd\u200d\U0001f680\U0001f3f3\ufe0f\u200d\U0001f308\u2764\ufe0f\u200d\U0001f525",
    "\u4e00\u53ea\u53ef\u7231\u7684\u5c0f\u732b\uff0c\u8d5b\u535a\u670b\u514b\u98ce\u683c",
    "\u0642\u0637\u0629 \u0644\u0637\u064a\u0641\u0629 \u0641\u064a \u0627\u0644\u062d\u062f\u064a\u0642\u0629",
    "\u0e41\u0e21\u0e27\u0e19\u0e48\u0e32\u0e23\u0e31\u0e01\u0e43\u0e19\u0e2a\u0e27\u0e19",
    ("\u304b\u308f\u3044\u3044\u732b\u306e\u30a4\u30e9\u30b9\u30c8 \u30ac\u30ae\u30b0 \uff76\uff9e\uff77"
     "\uff9e\uff78\uff9e"), "\uadc0\uc5ec\uc6b4 \uace0\uc591\uc774 \uadf8\ub9bc",
    ("\u092a\u094d\u092f\u093e\u0930\u0940 \u092c\u093f\u0932\u094d\u0932\u0940 \u0915\u094d\u0937\u0924"
     "\u094d\u0930\u093f\u092f"), "\u05d7\u05ea\u05d5\u05dc \u05d7\u05de\u05d5\u05d3",
    "\u03b3\u03ac\u03c4\u03b1 \u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3 \u03a3",
    "\u0301", "\u0301\u0302\u0303", " \u0301 ", "a\u0323\u0307", "a\u0307\u0323", "\u1e0b\u0323", "\u0344",
    "\u212b\u2126",
    "\x00", "a\x00b", "\x00\x00 x \x00", "\x01\x02\x7f\x80\x9f", "a\x85b", "a\x1cb\x1fc",
    "1-${phone.number}", '{"prompt": "a {red} cube", "n": [1, 2]}', "{}", "{{}}",
    "Hey </s>. how are you", "a <pad> b", "<pad>", "</s>", "<unk>", "a<unk>b", "x </s></s> y",
    "<extra_id_0>", "a <extra_id_0> b<extra_id_1>c", "  <extra_id_99>  ", "<extra_id_100>", "<EXTRA_ID_0>",
    "<extra_id_0",
    "1233", "12 33", "1,234.56", "x2 y3z",
    "\u0663\u0664\u0665 \u096a\u096b\u096c \u00b2\u00b3\u00b9 \u00bd \u2177 \u2163\u2162 \u2460\u2461",
    "cat<|endoftext|>dog", "cat <|endoftext|> dog", "<|startoftext|>", "<|endoftext|><|endoftext|>",
    "cat<|ENDOFTEXT|>dog", "<|StartOfText|>!<|EndOfText|>", "!<|endoftext|", "<|endoftext|>|>", "<<|endoftext|>>",
    "!<|STARTOFTEXT|>", "<|ENDOFTEXT|>'s", "x<|ENDOFTEXT|>!!", "<| endoftext |>", "\uff1c|endoftext|\uff1e",
    "\uff1cpad\uff1e \uff1c/s\uff1e \uff1cunk\uff1e\uff58\uff1cunk\uff1e",
    "the cat's 'LL I'm you'RE we've 'S'T'D 'm''s '", "don't won't DON'T o'clock 'twas rock'n'roll 'sX 'x",
    "&amp; &lt;b&gt; &#39;quoted&#39; &nbsp; &amp;amp;",
    "\u201ccurly\u201d \u2018quotes\u2019 \u00abguillemets\u00bb it\u2019s \u2014 \u2013 \u2026 \u00b7",
    "snake_case __init__ a_b_c _", "______",
    "!!!!!!!!", "??!!??!!", "...........", "a.b.c...d", "*(((masterpiece)))*, [[best]]:1.3, (a:1.2)",
    "$%^&*@#~`|\\/", "-----", "\u2014-\u2013\u2014",
    "ISTANBUL \u0130stanbul \u0131 I \u0130\u0130", "Stra\u00dfe STRASSE \u1e9e \u00df",
    "\ufb01ne \ufb02ow o\ufb03ce \ufb06 \ufb05", "\ufb01\u0301x",
    ("\uff46\uff55\uff4c\uff4c\uff57\uff49\uff44\uff54\uff48\u3000\uff34\uff25\uff38\uff34 \uff11\uff12"
     "\uff13\uff01"), "\u01c4 \u01c5 \u01c6 \u01c7",
    "\u00a0a\u00a0b\u00a0", "a\u1680b\u2000c\u2003d\u2009e\u200af\u202fg\u205fh\u3000i", "a\u2028b\u2029c",
    "a\u180eb",
    "zero\u200bwidth\u200cjoin\u200der\ufeffbom\u2060", "soft\u00adhyphen", "\ufeffleading mark",
    "\u202eright to left\u202c",
    "a\ufe0f\u20e3 1\ufe0f\u20e3 #\ufe0f\u20e3", "\U0001f1ef\U0001f1f5\U0001f1eb\U0001f1f7",
    "\U000e0067\U000e007f", "\ue000\uf8ff\U000f0000",
    "\ufffd\ufffe\uffff\U0010ffff", "\ufdd0", "\u2581a\u2581b", "\u2581\u2581 \u2581", "a\u2581", "\u0378\u0379",
    "\U0001f600" * 40,
    "e\u0323\u0301", "\u00b2\u0301\u00aa\u0308", "\u00b2\u0301\U00011b65 \u00b2\u0301\U0001e6e3",
    "\u00b2\u0897 \u00b2\u1acf",
    ("Z\u0351\u036b\u0313\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e"
     "\u0320\u034dA\u0334\u0335\u031c\u0330\u0354\u036b\u0357\u0362L\u0320\u0368\u0367\u0369\u0358G"
     "\u0334\u033b\u0348\u034d\u0354\u0339\u0311\u0357\u030e\u0305\u035b\u0301\u01ea\u0335\u0339\u033b"
     "\u031d\u0333\u0342\u030c\u030c\u0358!\u0356\u032c\u0330\u0319\u0317\u033f\u030b\u0365\u0365\u0302"
     "\u0363\u0310\u0301\u0301\u035c\u035e"),
    "\uac01 \u1100\u1161\u11a8 \u1100\u1161 \uac00\u11a8", "\u0b47\u0b56 \u0cc6\u0cd5\u0cc2",
    "http://example.com/a?b=c&d=e#f user@example.com", "C:\\path\\file.txt",
    "<lora:name:0.8> <sks> dog sksdog <My Style>x", "don" + "\u2019" + "t",
    "a" * 40, "aaaa bbbb " * 40, "a" * 5000, "ab" * 3000, "supercalifragilisticexpialidocious " * 30,
    "word " * 76, "word " * 75, "word " * 74,
    "x " * 511, "x " * 512, "x " * 510, "the quick brown fox jumps over the lazy dog. " * 200,
    "\u65e5\u672c\u8a9e" * 400,
    "!" * 1000, "\u0301" * 600,
]

BLOCKS = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x300, 0x36F), (0x370, 0x52F),
    (0x530, 0x6FF),
    (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x139F), (0x1680, 0x1AFF), (0x1B00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x2BFF),
    (0x2E80, 0x31FF), (0x4E00, 0x4FFF), (0xA000, 0xABFF), (0xAC00, 0xAFFF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
    (0xFE00, 0xFFFF),
    (0x10000, 0x11FFF), (0x1D000, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x2FFFF),
    (0xE0000, 0xE01FF),
]
FRAGMENTS = ["'s", "'LL", "</s>", "<|endoftext|>", "<pad>", "<extra_id_3>", " ", "  ", "\n", "the ", "cat", "1",
            "\u0301", "\u200d", "\u00e9", "sks", "<sks>", "<My Style>"]
NEW_TOKENS = ["sks", AddedToken("<My Style>", lstrip=True, rstrip=True, single_word=True, normalized=True)]


def random_texts(seed, count):
    """Strings that mix one to three blocks of Unicode, words and special tokens."""
    generator = random.Random(seed)
    for _ in range(count):
        blocks = generator.sample(BLOCKS, generator.randint(1, 3))
        parts = []
        for _ in range(generator.randint(1, 60)):
            if generator.random() < 0.15:
                parts.append(generator.choice(FRAGMENTS))
            else:
                code = generator.randint(*generator.choice(blocks))
                parts.append(chr(code) if not 0xD800 <= code < 0xE000 else " ")
        yield "".join(parts)


def texts_for(name):
    """The prompts and random strings that differ from name to name."""
    return PROMPTS + list(random_texts(seed=name, count=1500))


def tokenize(kind, folder, length, texts):
    """What the program makes of `texts`: (ids, truncated) of each."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    result = subprocess.run([PROGRAM, kind, folder, str(length)], input=lines, capture_output=True, text=True,
                            timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [(line["ids"], line["truncated"]) for line in map(json.loads, result.stdout.split("\n")[:-1])]


def expect_equal(kind, folder, reference, length, texts):
    ours = tokenize(kind, folder, length, texts)
    theirs = reference(texts, padding="max_length", max_length=length, truncation=True).input_ids
    assert len(ours) == len(texts)
    wrong = [(text, ids, expected) for text, (ids, _), expected in zip(texts, ours, theirs) if ids != expected]
    assert not wrong, f"{len(wrong)} of {len(texts)} differ; the first: {wrong[0]}"


def expect_equal_truncation(kind, folder, reference, length, texts):
    """Like diffusers' warning: the ids beyond the cut, decoded. The reference puts some added tokens in lower case."""
    ours = tokenize(kind, folder, length, texts)
    for text, (_, truncated) in zip(texts, ours):
        ids = reference(text).input_ids
        expected = reference.decode(ids[length - 1:-1], clean_up_tokenization_spaces=False) if len(ids) > length else ""
        assert truncated.strip().lower() == expected.strip().lower(), text


# --- CLIP ------------------------------------------------------------------------------------------------


def write_clip_files(folder):
    """vocab.json and merges.txt of the released model, from OpenAI's list of merges."""
    source = pathlib.Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    merges = gzip.decompress(source.read_bytes()).decode().split("\n")[1:49152 - 256 - 2 + 1]
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(len(others))]
    pieces = [*characters, *(c + "</w>" for c in characters), *("".join(merge.split()) for merge in merges),
              "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return folder


def token(content, **changes):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | changes


CLIP_CONFIGS = {
    "files": {},
    "flux": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "49406": token("<|startoftext|>", normalized=True, special=True),
                "49407": token("<|endoftext|>", special=True),
            },
            "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": True, "do_lower_case": True, "errors": "replace", "model_max_length": 77,
            "tokenizer_class": "CLIPTokenizer",
        },
        "special_tokens_map.json": {"pad_token": "!"},  # not read beside added_tokens_decoder
    },
    "pad_is_a_word": {
        "tokenizer_config.json": {
            "bos_token": {"__type": "AddedToken", **token("<|startoftext|>", normalized=True)},
            "eos_token": {"__type": "AddedToken", **token("<|endoftext|>", normalized=True)},
            "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
        },
        "special_tokens_map.json": {"pad_token": "!", "unk_token": token("<|endoftext|>")},
    },
    "added_tokens": {
        "tokenizer_config.json": {"pad_token": "[PAD]", "additional_special_tokens": ["<sks>"]},
        "added_tokens.json": {"<My Style>": 49408, "sks": 49409},
    },
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """clip(name) -> (folder, reference)."""

    def load(name):
        folder = tmp_path_factory.mktemp("clip") / name
        write_clip_files(folder)
        for file, content in CLIP_CONFIGS.get(name, {}).items():
            (folder / file).write_text(json.dumps(content))
        reference = CLIPTokenizer.from_pretrained(folder)
        if name == "saved":
            reference.add_tokens(NEW_TOKENS)
            folder = folder.with_name("resaved")
            reference.save_pretrained(folder)
            assert not (folder / "vocab.json").exists()
            reference = CLIPTokenizer.from_pretrained(folder)
        return folder, reference

    return load


@pytest.mark.parametrize("name", [*CLIP_CONFIGS, "saved"])
def test_clip_ids(clip, name):
    folder, reference = clip(name)
    expect_equal("clip", folder, reference, 77, texts_for("clip " + name))
    expect_equal("clip", folder, reference, 12, PROMPTS)
    expect_equal("clip", folder, reference, 2, PROMPTS)
    expect_equal_truncation("clip", folder, reference, 12, PROMPTS)


def test_clip_ids_that_users_quoted(clip):
    folder, _ = clip("files")
    texts = ["a photo of a fox", "r\u00e9sum\u00e9", "1233", "12 33"]
    fox, resume, digits, spaced = (ids for ids, _ in tokenize("clip", folder, 8, texts))
    assert fox == [49406, 320, 1125, 539, 320, 3240, 49407, 49407]
    assert resume[1:4] == [29106, 7054, 4166]
    assert digits == spaced


# --- T5 --------------------------------------------------------------------------------------------------


def train_sentencepiece(folder, **options):
    """A small model with T5's settings."""
    lines = [line for text in PROMPTS for line in text.replace("\x00", "").splitlines()]
    words = [line for line in lines if 0 < len(line) < 200 and "<" not in line]
    choices = itertools.product(("one", "two", "many"), ("red", "blue", "green", "golden"), ("cube", "ball", "cone"),
                                ("left of", "above", "beside", "under"))
    prose = [f"a photo of {count} {colour} {shape} {place} a {colour} {shape}"
             for count, colour, shape, place in choices]
    folder.mkdir()
    (folder / "corpus.txt").write_text("\n".join(words * 3 + prose), encoding="utf-8")
    settings = {
        "input": str(folder / "corpus.txt"), "model_prefix": str(folder / "spiece"), "model_type": "unigram",
        "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "byte_fallback": False,
        "normalization_rule_name": "nmt_nfkc", "character_coverage": 0.98,
        "vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(**settings | options)
    return folder


def extra_ids(base, **changes):
    return {str(base + i): token(f"<extra_id_{99 - i}>", special=True, **changes) for i in range(100)}


T5_CASES = {
    "files": ({}, {}),
    "flux": ({}, {
        "additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)], "extra_ids": 100,
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
        "legacy": True, "add_prefix_space": True, "clean_up_tokenization_spaces": True, "model_max_length": 512,
    }),
    "not_legacy": ({}, {"legacy": False, "additional_special_tokens": ["<sks>", "cat"]}),
    "identity": ({"normalization_rule_name": "identity"}, {}),
    "case_folding": ({"normalization_rule_name": "nmt_nfkc_cf"}, {}),
    "own_symbols": ({"user_defined_symbols": ["sks", "\ufb01"], "control_symbols": ["<My Style>"]}, {}),
    "few_pieces": ({"vocab_size": 230}, {}),
}


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """t5(name) -> (folder, reference)."""

    def load(name):
        model, config = T5_CASES.get(name, ({}, {}))
        folder = train_sentencepiece(tmp_path_factory.mktemp("t5") / name, **model)
        if name == "flux":
            base = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model")).get_piece_size()
            config = config | {"added_tokens_decoder": {
                **{str(i): token(content, special=True) for i, content in enumerate(("<pad>", "</s>", "<unk>"))},
                **extra_ids(base, lstrip=True, rstrip=True)}}
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        reference = T5Tokenizer.from_pretrained(folder)
        if name == "saved":
            reference.add_tokens(NEW_TOKENS)
            folder = folder.with_name("resaved")
            reference.save_pretrained(folder)
            assert not (folder / "spiece.model").exists()
            reference = T5Tokenizer.from_pretrained(folder)
        return folder, reference

    return load


@pytest.mark.parametrize("name", [*T5_CASES, "saved"])
def test_t5_ids(t5, name):
    folder, reference = t5(name)
    expect_equal("t5", folder, reference, 512, PROMPTS)
    expect_equal("t5", folder, reference, 128, texts_for("t5 " + name))
    expect_equal("t5", folder, reference, 12, PROMPTS)
    expect_equal("t5", folder, reference, 1, PROMPTS)
    expect_equal_truncation("t5", folder, reference, 12, PROMPTS)


# --- both ------------------------------------------------------------------------------------------------


def test_every_character(clip, t5):
    """Each character of the first two planes between letters, after a mark and before one."""
    texts = []
    for start in range(0, 0x20000, 0x80):
        characters = [chr(code) for code in range(start, start + 0x80) if not 0xD800 <= code < 0xE000]
        texts.append(" ".join(f"x{c}y {c}\u0334 \u0345{c} \u00b2{c}" for c in characters))
    texts = [text for text in texts if text]
    for kind, (folder, reference) in (("clip", clip("files")), ("t5", t5("case_folding"))):
        assert all(truncated == "" for _, truncated in tokenize(kind, folder, 3200, texts))
        expect_equal(kind, folder, reference, 3200, texts)
