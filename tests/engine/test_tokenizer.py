"""Texts to tokens: vocab.txt gives what BertTokenizerFast gives, tokenizer.json is used as it is, and broken files are
refused in one sentence that names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SPECIAL, make_checkpoint

import fusebert
from fusebert import FusebertError
from fusebert.engine.tokenizer import Tokenizer

PIECES = "abcdefghijklmnopqrstuvwxyzäéüñß0123456789"
WORDS = [
    "the",
    "cat",
    "un",
    "##aff",
    "##able",
    "##s",
    "hello",
    "Hello",
    "café",
    "cafe",
    "Ünder",
    "under",
    "日",
    "本",
    "İ",
]
VOCABULARY = [*SPECIAL, *WORDS, *PIECES, *(f"##{c}" for c in PIECES), *"ABCÜÉ.,!?'-()[]#&"]
TEXTS = [
    "",
    " ",
    "the cat",
    "The CAT's unaffable!",
    "Café Ünder übermäßig İstanbul ﬁne ÀÉÎ",
    "cafe\u0301 u\u0308ber",  # accents that combine
    "日本の猫 the日cat",
    "tabs\tand\nlines\r\nand\u00a0spaces\u3000here\u200b",
    "control\x00\x01\ufffdcharacters\u00ad",
    "[CLS] the [MASK] cat [SEP] [UNK] [mask]",
    "🙂 the 👩‍👩‍👧 cat",
    "x" * 300,
    "the cat " * 40,
    "\U0001f600" * 50 + "#&##s (a-b) [c]",
]
PAIRS = [("the cat", "hello"), ("", "hello"), ("the", ""), ("hello " * 30, "the cat"), ("a b c", "the cat " * 30)]
OPTIONS = [
    {},
    {"do_lower_case": True},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
]


def write(folder: Path, options: Any = None, words: list[str] = VOCABULARY) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    if options is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder


def read(folder: Path, longest: int = 64, max_length: int | None = None) -> Tokenizer:
    tokenizer = Tokenizer.read(folder, longest, max_length)
    assert tokenizer
    return tokenizer


def assert_same(ours: Tokenizer, theirs: Any, length: int) -> None:
    for text in [*TEXTS, *PAIRS]:
        (got,) = ours([text])
        parts = ([text],) if isinstance(text, str) else ([text[0]], [text[1]])  # alone, an empty second is no second
        want = theirs(*parts, truncation="longest_first", max_length=length, return_offsets_mapping=True)
        assert got.ids == want["input_ids"][0], text
        assert got.kinds == want["token_type_ids"][0], text
        assert got.spans == [tuple(span) for span in want["offset_mapping"][0]], text
        assert got.sources == want.sequence_ids(0), text


@pytest.mark.parametrize("length", [64, 16, 5, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_vocab_txt_tokenises_as_bert_tokenizer_fast(tmp_path: Path, options: dict[str, Any], length: int) -> None:
    from transformers import BertTokenizerFast

    write(tmp_path, options)
    theirs = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), **options)
    assert_same(read(tmp_path, length), theirs, length)


def test_vocab_txt_tokenises_as_the_tokenizer_that_transformers_reads_from_the_folder(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    write(tmp_path, {"do_lower_case": False, "tokenizer_class": "BertTokenizer", "model_max_length": 16})
    assert_same(read(tmp_path), BertTokenizerFast.from_pretrained(tmp_path), 16)


def test_a_batch_gives_what_its_texts_give_alone(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path))
    texts = [*TEXTS, *PAIRS]
    assert tokenizer(texts) == [tokenizer([text])[0] for text in texts]
    assert tokenizer([]) == []


@pytest.mark.parametrize("length", [64, 5])
def test_bare_tokens_are_the_same_without_their_places(tmp_path: Path, length: int) -> None:
    tokenizer = read(write(tmp_path), length)
    texts = [*TEXTS, *PAIRS]
    for whole, bare in zip(tokenizer(texts), tokenizer.bare(texts), strict=True):
        assert (bare.ids, bare.kinds, bare.cut) == (whole.ids, whole.kinds, whole.cut)
        assert (bare.spans, bare.sources) == ([], [])


def test_other_special_tokens_are_taken_from_the_settings(tmp_path: Path) -> None:
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "the", "cat"]
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), words, strict=False))
    write(tmp_path, {**names, "mask_token": {"content": "<mask>", "lstrip": True}}, words)
    tokenizer = read(tmp_path)
    assert tokenizer(["the <mask> dog"])[0].ids == [2, 5, 4, 1, 3]
    assert tokenizer.mask_id() == 4


def test_windows_line_ends_and_a_missing_last_newline_change_nothing(tmp_path: Path) -> None:
    want = read(write(tmp_path))(TEXTS)
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(VOCABULARY).encode())
    assert read(tmp_path)(TEXTS) == want


def test_a_line_separator_inside_a_word_does_not_shift_the_ids_after_it(tmp_path: Path) -> None:
    write(tmp_path, words=[*SPECIAL, "a\u2028b", "the", "cat\x85", "dog"])
    assert read(tmp_path)(["the dog"])[0].ids == [2, 6, 8, 3]


def test_decoding_gives_the_text_back_with_its_special_tokens(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path))
    assert tokenizer.decode(tokenizer(["The unaffable cats"])[0].ids) == "[CLS] the unaffable cats [SEP]"


# How long a text may be.


@pytest.mark.parametrize(
    ("limit", "length"),
    [(10, 10), (64, 32), (1e30, 32), (10.0, 10), (2, 32), (0, 32), (-5, 32), (None, 32), ("10", 32), ([10], 32),
     (float("nan"), 32), (float("inf"), 32)],
)  # fmt: skip
def test_the_length_is_the_smaller_of_the_model_and_a_sane_setting(tmp_path: Path, limit: Any, length: int) -> None:
    tokenizer = read(write(tmp_path, {"model_max_length": limit}), 32)
    assert tokenizer.max_length == length
    assert len(tokenizer(["the cat " * 100])[0].ids) == length


def test_a_sentence_transformer_sets_its_own_length(tmp_path: Path) -> None:
    write(tmp_path, {"model_max_length": 30})
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    assert read(tmp_path, 32).max_length == 12


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_length_with_hardly_room_for_special_tokens_gives_no_more_tokens_or_a_clear_error(
    tmp_path: Path, length: int, pair: bool
) -> None:
    try:
        (tokens,) = read(write(tmp_path), length)([("the cat", "hello") if pair else "the cat"])
    except FusebertError:
        return
    assert len(tokens.ids) <= length


# tokenizer.json.


def saved(folder: Path, **options: Any) -> Path:
    """A folder with tokenizer.json alone."""
    tokenizer = read(write(folder, options))
    tokenizer.save(folder / "tokenizer.json")
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()
    return folder


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_saved_tokenizer_gives_the_same_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    want = read(write(tmp_path, options))([*TEXTS, *PAIRS])
    assert read(saved(tmp_path, **options))([*TEXTS, *PAIRS]) == want


def test_tokenizer_json_is_preferred_to_vocab_txt(tmp_path: Path) -> None:
    saved(tmp_path, do_lower_case=False)
    want = read(tmp_path)(TEXTS)
    write(tmp_path, {"do_lower_case": True})
    assert read(tmp_path)(TEXTS) == want


def test_padding_and_truncation_stored_in_tokenizer_json_are_replaced_by_the_models_own(tmp_path: Path) -> None:
    saved(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["truncation"] = {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    values["padding"] = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    values["padding"] |= {"pad_type_id": 0, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    tokens = read(tmp_path)(["hello the cat", "the cat " * 100])
    assert [len(t.ids) for t in tokens] == [5, 64]
    assert tokens[0].ids == [VOCABULARY.index(word) for word in ("[CLS]", "hello", "the", "cat", "[SEP]")]


def test_a_tokenizer_with_no_mask_token_has_no_mask_id(tmp_path: Path) -> None:
    saved(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text().replace("[MASK]", "[HIDE]")
    (tmp_path / "tokenizer.json").write_text(text)
    assert read(tmp_path).mask_id() is None


# Broken files and texts.


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert Tokenizer.read(tmp_path, 64) is None
    model = fusebert.load(make_checkpoint(tmp_path), threads=1)
    with pytest.raises(FusebertError, match=r"tokenizer\.json or vocab\.txt"):
        model.encode(["the cat"])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"model": null}', "{}", "[" * 100_000, "\ud800"])
def test_a_broken_tokenizer_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(FusebertError, match=r"tokenizer\.json"):
        Tokenizer.read(tmp_path, 64)


@pytest.mark.parametrize("token", SPECIAL)
def test_a_vocabulary_without_a_special_token_is_refused_by_its_name(tmp_path: Path, token: str) -> None:
    write(tmp_path, words=[word for word in VOCABULARY if word != token])
    with pytest.raises(FusebertError, match=rf"vocab\.txt .*\{token[:-1]}"):
        Tokenizer.read(tmp_path, 64)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"\xc3(", b"\n\n\n"])
def test_a_broken_vocab_txt_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(FusebertError, match=r"vocab\.txt"):
        Tokenizer.read(tmp_path, 64)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "sentence_bert_config.json"])
def test_broken_settings_are_named(tmp_path: Path, file: str, text: str) -> None:
    (write(tmp_path) / file).write_text(text)
    with pytest.raises(FusebertError, match=file):
        Tokenizer.read(tmp_path, 64)


@pytest.mark.parametrize("token", [None, 33, [], {}, {"content": None}, "gone", "\ud800", True])
def test_a_special_token_that_is_no_word_of_the_vocabulary_is_refused(tmp_path: Path, token: Any) -> None:
    write(tmp_path, {"cls_token": token})
    with pytest.raises(FusebertError, match=r"vocab\.txt"):
        Tokenizer.read(tmp_path, 64)


def _edit(folder: Path, path: list[Any], value: Any) -> None:
    values = json.loads((folder / "tokenizer.json").read_text())
    place = values
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["model", "unk_token"], "[GONE]"),
        (["model", "vocab"], {}),
        (["model", "vocab"], {"the": 2**31}),
        (["model", "max_input_chars_per_word"], 0),
        (["model", "continuing_subword_prefix"], ""),
        (["post_processor", "cls"], ["[CLS]", 10**9]),
        (["post_processor", "cls"], ["[GONE]", 2]),
        (["post_processor"], None),
        (["pre_tokenizer"], None),
        (["pre_tokenizer"], {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}),
        (["normalizer"], {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        (["normalizer"], {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        (["normalizer"], {"type": "Precompiled", "precompiled_charsmap": ""}),
        (["normalizer"], {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_tokenizer_that_fails_only_when_used_says_so_in_our_words(
    tmp_path: Path, path: list[Any], value: Any
) -> None:
    _edit(saved(tmp_path), path, value)
    make_checkpoint(tmp_path)
    try:
        fusebert.load(tmp_path, threads=1).encode(["the cat zzz", ("hello", "日 the")])
    except FusebertError as error:
        assert str(error)  # noqa: PT017 - either outcome is right, any other exception is not


@pytest.mark.parametrize("text", [None, 3, b"the cat", ["the"], ("a", "b", "c"), ("a", 3), ["a", None], {}])
def test_a_text_that_is_neither_a_string_nor_a_pair_is_refused(tmp_path: Path, text: Any) -> None:
    with pytest.raises(FusebertError, match="a text is a string or a pair"):
        read(write(tmp_path))(["the cat", text])


def test_a_string_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FusebertError, match="text"):
        read(write(tmp_path))(["the \ud800 cat"])
