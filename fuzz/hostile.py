"""Hostile: what is worse than any mutation would find soon: components of tokenizers, and requests to the server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import VALUES, Mutator, varint


def _table(*strings: bytes) -> str:
    """A sentencepiece table: the length of an index, an index, strings."""
    index = b"\x01\x00\x00\x00" * 8
    return base64.b64encode(len(index).to_bytes(4, "little") + index + b"\0".join(strings) + b"\0").decode()


_PATTERNS: tuple[Any, ...] = (
    {"String": ""},
    {"String": "a"},
    {"Regex": ""},
    {"Regex": "."},
    {"Regex": "(a*)*b"},
    {"Regex": "(?=x)"},
    {"Regex": "\\b"},
    {"Regex": "$"},
    {"Regex": "["},
    {"Regex": "(" * 300},
    {"Regex": "(?<n>a)\\k<n>"},
    "a",
    {},
)
COMPONENTS: tuple[Any, ...] = (
    *(
        {"type": "Replace", "pattern": pattern, "content": content}
        for pattern in _PATTERNS
        for content in ("", "b" * 900)
    ),
    *(
        {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": invert}
        for pattern in _PATTERNS
        for invert in (True, False)
    ),
    *(
        {"type": "Precompiled", "precompiled_charsmap": table}
        for table in ("", "AA==", "AAAA", "////fw==", "AQAAAA==", _table(b"a", b"b" * 3000), _table(), "é", None)
    ),
    *(
        {"type": kind}
        for kind in (
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Nmt",
            "StripAccents",
            "Lowercase",
            "ByteLevel",
            "Fuse",
            "Whitespace",
            "WhitespaceSplit",
            "BertPreTokenizer",
            "UnicodeScripts",
            "Nothing",
        )
    ),
    {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]},
    {"type": "Sequence", "pretokenizers": []},
    {"type": "Sequence", "processors": []},
    {"type": "Prepend", "prepend": "x" * 2000},
    {"type": "Prepend", "prepend": ""},
    {"type": "Metaspace", "replacement": "xy", "prepend_scheme": "always", "split": True},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "content": "a", "start": 9, "stop": 9},
    {"type": "CharDelimiterSplit", "delimiter": ""},
    {"type": "Digits", "individual_digits": True},
    {"type": "FixedLength", "length": 0},
    {"type": "Punctuation", "behavior": "Removed"},
    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    {"type": "BPEDecoder", "suffix": ""},
    {"type": "WordPiece", "prefix": "", "cleanup": True},
    {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
    {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 1 << 31}}] * 50,
        "pair": [],
        "special_tokens": {},
    },
    {"type": "Unigram", "unk_id": 99, "vocab": [["a", 0.0]], "byte_fallback": True},
    {"type": "Unigram", "vocab": []},
    {"type": "Unigram", "unk_id": 0, "vocab": [["", -1e300], ["a", float("nan")]]},
    {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]},
    {"type": "BPE", "vocab": {}, "merges": [], "dropout": 2},
    {"type": "BPE", "vocab": {"a": 0, "b": 0, "ab": 1 << 31}, "merges": ["a b"], "continuing_subword_prefix": "##"},
    {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
    {
        "type": "WordPiece",
        "vocab": {"a": 0},
        "unk_token": "z",
        "continuing_subword_prefix": "",
        "max_input_chars_per_word": 0,
    },
    {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Left"},
    {
        "strategy": {"Fixed": 1 << 40},
        "direction": "Right",
        "pad_to_multiple_of": 0,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "",
    },
    {"id": 0, "content": "", "single_word": True, "lstrip": True, "rstrip": True, "normalized": True, "special": True},
    {
        "id": 1 << 31,
        "content": "a",
        "single_word": False,
        "lstrip": True,
        "rstrip": True,
        "normalized": True,
        "special": False,
    },
    *VALUES,
)

_BODIES: tuple[tuple[str, Any], ...] = (
    (
        "/embed",
        {"inputs": ["the cat", "a mat"], "truncate": False, "normalize": True, "dimensions": 4, "model": "none"},
    ),
    ("/embed_all", {"inputs": [[2, 5, 3], [2, 3]]}),
    ("/predict", {"inputs": [["the cat", "mat"], ["dogs"]], "raw_scores": True, "model": "sequence"}),
    ("/rerank", {"query": "cat", "texts": ["the cat", "dogs"], "return_text": True, "model": "sequence"}),
    ("/v2/rerank", {"query": "cat", "documents": ["the cat", {"text": "dogs"}], "top_n": 1, "model": "sequence"}),
    ("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["the cat", "dogs"]}}),
    ("/tokenize", {"inputs": ["the cat", "unable"], "add_special_tokens": False}),
    ("/decode", {"ids": [[2, 5, 3]], "skip_special_tokens": False}),
    ("/tag", {"inputs": ["the cat sat"], "grouped": False, "model": "token"}),
    ("/answer", {"inputs": [{"question": "who ?", "context": "the cat sat"}], "model": "question"}),
    ("/v1/embeddings", {"input": ["the cat", "dogs"], "encoding_format": "base64", "dimensions": 4, "model": "none"}),
    ("/vectors", {"text": "the cat"}),
    (
        "/v2/models/sequence/infer",
        {
            "id": "1",
            "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["the cat", "dogs"]}],
            "outputs": [{"name": "logits", "parameters": {"classification": 2}}],
            "parameters": {"binary_data_output": True},
        },
    ),
    (
        "/v2/models/none/infer",
        {
            "inputs": [
                {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [2, 5, 3]},
                {"name": "attention_mask", "shape": [1, 3], "datatype": "INT64", "data": [[1, 1, 0]]},
            ]
        },
    ),
)


def write_requests(folder: Path) -> None:
    """Sound requests of every protocol."""
    for number, (path, body) in enumerate(_BODIES):
        (folder / f"{number}.http").write_bytes(f"{path}\n\n".encode() + json.dumps(body).encode())
    from fusebert.serve.protocols.oip_grpc import MESSAGES

    infer = MESSAGES["ModelInferRequest"](model_name="none")
    ids = infer.inputs.add(name="input_ids", datatype="INT64")
    ids.shape.extend([1, 3])
    ids.contents.int64_contents.extend([2, 5, 3])
    raw = MESSAGES["ModelInferRequest"](model_name="sequence")
    text = raw.inputs.add(name="text", datatype="BYTES")
    text.shape.extend([1])
    raw.raw_input_contents.append(b"\x07\0\0\0the cat")
    asked = [
        (b"ModelInfer", infer.SerializeToString()), (b"ModelInfer", raw.SerializeToString()),
        (b"ModelMetadata", MESSAGES["ModelMetadataRequest"](name="none").SerializeToString()),
        (b"paraphrase", b"\x0a" + varint(7) + b"the cat" + b"\x12" + varint(4) + b"dogs"),
    ]  # fmt: skip
    for number, (method, message) in enumerate(asked):
        (folder / f"{number}.grpc").write_bytes(method + b"\n" + message)


def request(data: bytes, inner: Callable[[bytes], Mutator], end: bytes = b"\n\n") -> Mutator:
    """A request whose head stays and whose body is mutated."""
    head, _, body = data.partition(end)
    mutate = inner(body)

    def mutated(random: Random) -> bytes:
        return head + end + mutate(random)

    return mutated
