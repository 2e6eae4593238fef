"""Reranking on a CPU: 40 pairs of a query and a text, scored by cross-encoders of two sizes, ours and others in turns.

Classifiers have random weights and one output. CrossEncoder is sentence-transformers' own; ONNX Runtime gets what that
makes of texts: sorted, padded batches of 32, on the graph without its head, which costs nothing."""

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES
from rivals import Forms, feed

import fusebert
from fusebert.cli.show import show_status
from fusebert.engine.native import cores, multiplies_bf16

PAIRS = 40
LENGTHS = (128, 512)  # tokens of a pair
_BATCH = 32
Pair = tuple[str, str]
Call = Callable[[], Any]


def checkpoint(size: str, place: Path) -> Path:
    """A random cross-encoder with MiniLM's tokenizer, made once."""
    folder = place / f"rerank-{size}" / "checkpoint"
    if not (folder / "model.safetensors").is_file():
        import torch
        import transformers

        torch.manual_seed(0)
        library: Any = transformers
        config = library.BertConfig(**SIZES[size], num_labels=1)
        library.BertForSequenceClassification(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            if (place / "minilm" / "checkpoint" / name).exists():
                shutil.copy(place / "minilm" / "checkpoint" / name, folder)
    return folder


def pairs(tokenizer: Any, texts: Sequence[str], length: int) -> list[Pair]:
    """A query and texts with which a pair has so many tokens, or one or two less."""
    query, words = texts[0], " ".join(texts).split()
    found = []
    for number in range(PAIRS):
        own = words[number * 17 :]
        count = length // 2
        while len(tokenizer([(query, " ".join(own[: count + 1]))])[0].ids) < length:
            count += 1
        found.append((query, " ".join(own[:count])))
    return found


def ours(precision: str, folder: Path, given: list[Pair]) -> Call:
    """fusebert, from texts to scores."""
    model = fusebert.load(folder, precision)
    return partial(model.score, given)


def cross_encoder(folder: Path, given: list[Pair]) -> Call:
    """sentence-transformers with torch."""
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(cores())
    model = CrossEncoder(str(folder), device="cpu", max_length=512)
    return partial(model.predict, given, batch_size=_BATCH, show_progress_bar=False)


def onnx(form: str, folder: Path, given: list[Pair]) -> Call:
    """ONNX Runtime on one of the forms of the encoder."""
    import onnxruntime
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(getattr(Forms(folder), form), options, providers=["CPUExecutionProvider"])

    def call() -> None:
        ordered = sorted(given, key=lambda pair: -len(pair[1]))
        for first in range(0, len(ordered), _BATCH):
            encoded = tokenizer.encode_batch(ordered[first : first + _BATCH])
            ids, mask, kinds = (
                np.array([getattr(own, name) for own in encoded], np.int64)
                for name in ("ids", "attention_mask", "type_ids")
            )
            session.run(None, feed(ids, mask) | {"token_type_ids": kinds})

    return call


def measure(place: Path, texts: Sequence[str], short: bool) -> list[dict[str, Any]]:
    """The seconds of each way, size and length: the best of two turns, of one where they are long."""
    found = []
    for size in ("minilm",) if short else ("minilm", "base"):
        folder = checkpoint(size, place)
        tokenizer = fusebert.load(folder).tokenizer
        for length in LENGTHS[:1] if short else LENGTHS:
            show_status(f"reranking: {size}, pairs of {length} tokens")
            given = pairs(tokenizer, texts, length)
            precisions = ("fp32", "bf16", "int8") if multiplies_bf16() else ("fp32", "int8")
            calls = {f"fusebert {p}": ours(p, folder, given) for p in precisions}
            calls["CrossEncoder, torch"] = cross_encoder(folder, given)
            calls["ONNX Runtime fp32"] = onnx("optimized", folder, given)
            calls["ONNX Runtime int8"] = onnx("dynamic", folder, given)
            told = calls["CrossEncoder, torch"](), calls["fusebert fp32"]()
            best = _best(calls)
            seconds = {name: round(one, 4) for name, one in best.items()}
            error = float(np.abs(np.subtract(*told)).max())
            found.append({"model": size, "tokens": length, "seconds": seconds, "largest_difference_fp32": error})
    return found


def _best(calls: dict[str, Call]) -> dict[str, float]:
    best: dict[str, float] = {}
    for turn in range(3):
        for name, call in calls.items():
            if turn and best[name] > (4.0 if turn == 1 else 1.0):
                continue
            begin = time.perf_counter()
            call()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - begin)
    return best


def serving_versions() -> dict[str, str]:
    """Of the servers, in build/serving, and of sentence-transformers."""
    place = Path(__file__).parents[1] / "build" / "serving"
    names = ("fastapi", "mosec", "litserve", "nvidia-pytriton")
    found = {d.name: d.version for d in distributions(path=[str(place)]) if d.name in names}
    try:
        return found | {"sentence-transformers": version("sentence-transformers")}
    except PackageNotFoundError:
        return found
