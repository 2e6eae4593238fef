"""Seeds: the sound files that cases are made of, written by the tests' own makers into a folder by name."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzz.hostile import write_requests

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
WORDS = "the cat sat on the mat\tthe dog ran\t1\nunable , cats !\tdogs ran .\t0\nthe mat\tthe mats\t1\n"


def _onnx(folder: Path) -> None:
    import onnx
    from match.small import Small

    class One(Small):
        layers, hidden, heads, inner = 1, 8, 2, 12

    class Late(One):
        opset = 18

    onnx.save(One().build(), folder / "one.onnx")
    onnx.save(Late().build(), folder / "late.onnx")
    beside = folder / "beside"
    beside.mkdir()
    onnx.save(One().build(), beside / "model.onnx", save_as_external_data=True, location="weights", size_threshold=64)
    for name in ("source", "int8"):
        shutil.copy(GOLDEN / "onnx" / f"{name}.onnx", folder)
    import zoo

    for name in ("ort-fused-bert", "int8-qdq-bert", "onnx-bert-dynamo-static"):
        shutil.copy(zoo.get(name).make(), folder / f"{name}.onnx")


def _tensorflow(folder: Path) -> None:
    from recipes import toys

    toys.frozen(
        folder / "toy.pb", "x Placeholder dtype=DT_FLOAT\nc Const value=2.5\na AddV2 x c\nb MatMul a c\ne Erf b"
    )
    for name in ("source", "int8"):
        shutil.copy(GOLDEN / "tensorflow" / f"{name}.pb", folder)
    shutil.copytree(GOLDEN / "tensorflow" / "source", folder / "saved")
    import zoo

    shutil.copytree(zoo.get("tf1-saved").make(), folder / "saved1")
    shutil.copytree(zoo.get("tf-official").make(), folder / "official")
    from fusebert.formats.tensorflow.messages import message
    from fusebert.recipes.pattern import to_text

    graph = message("GraphDef").FromString((folder / "toy.pb").read_bytes())
    (folder / "text.pbtxt").write_text(to_text(graph))


def _checkpoints(folder: Path) -> None:
    from checkpoints import make_checkpoint
    from safetensors.numpy import load_file, save_file

    plain = make_checkpoint(folder / "plain", head="sequence", layers=1, vocab=True)
    told = {"do_lower_case": True, "model_max_length": 12, "mask_token": {"content": "[MASK]"}}
    (plain / "tokenizer_config.json").write_text(json.dumps(told))
    (plain / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')
    tensors = load_file(plain / "model.safetensors")

    sharded = folder / "sharded"
    shutil.copytree(plain, sharded)
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (sharded / "model.safetensors").unlink()

    make_checkpoint(folder / "roberta", "roberta", "masked", layers=1, vocab=True)
    make_checkpoint(folder / "distilbert", "distilbert", "question", layers=1, vocab=True)
    import torch

    pickled = folder / "pickled"
    shutil.copytree(plain, pickled)
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()


def _sentences(folder: Path) -> None:
    from checkpoints import make_checkpoint
    from safetensors.numpy import save_file

    home = make_checkpoint(folder / "model", layers=1, vocab=True)
    parts = [
        ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize"),
    ]  # fmt: skip
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(parts)
    ]
    (home / "modules.json").write_text(json.dumps(modules))
    for _, path in parts[1:]:
        (home / path).mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (home / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    dense = {
        "in_features": 16,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (home / "2_Dense" / "config.json").write_text(json.dumps(dense))
    random = np.random.default_rng(1)
    weights = {"linear.weight": random.random((8, 16), np.float32), "linear.bias": random.random(8, np.float32)}
    save_file(weights, home / "2_Dense" / "model.safetensors")
    prompts = {"prompts": {"query": "query: ", "passage": ""}, "default_prompt_name": "query"}
    (home / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (home / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')


def _tokenizers(folder: Path) -> None:
    """Every component of the library once or more, as in real families."""
    from checkpoints import SPECIAL, WORDS
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS, "Ġthe", "▁the", "t", "h", "e", "th"])}
    pieces: list[tuple[str, float]] = [(word, -float(i)) for i, word in enumerate(vocabulary)]
    word_piece = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    word_piece.decoder = decoders.WordPiece()
    word_piece.add_special_tokens(SPECIAL)
    unigram = Tokenizer(models.Unigram(pieces, 1, True))
    unigram.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(), normalizers.Lowercase(),
         normalizers.Prepend("▁"), normalizers.StripAccents(), normalizers.Replace("``", '"')]
    )  # fmt: skip
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    unigram.decoder = decoders.Metaspace()
    unigram.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    pair = Tokenizer(
        models.BPE({"t": 0, "h": 1, "e": 2, "th": 3, "the": 4, "<s>": 5, "</s>": 6}, [("t", "h"), ("th", "e")])
    )
    pair.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Nmt()])
    pair.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "isolated"), pre_tokenizers.ByteLevel(), pre_tokenizers.Digits()]
    )
    pair.post_processor = processors.RobertaProcessing(("</s>", 6), ("<s>", 5))
    pair.decoder = decoders.ByteLevel()
    for name, made in (("word-piece", word_piece), ("unigram", unigram), ("pair", pair)):
        (folder / name).mkdir()
        made.save(str(folder / name / "tokenizer.json"))


def _artifacts(folder: Path) -> None:
    from checkpoints import make_checkpoint

    import fusebert

    made = make_checkpoint(folder / "checkpoint", "electra", "masked", layers=1, vocab=True)
    fusebert.load(made, "int8", threads=1).save(folder / "artifact")
    shutil.rmtree(made)
    shutil.copytree(GOLDEN / "artifact-v1", folder / "version1")


def _recipes(folder: Path) -> None:
    from recipes import toys

    from fusebert.recipes.pattern import load, to_text

    text = "x Placeholder dtype=DT_FLOAT\nc Const value=2.5\na AddV2 x c\nb Mul a c\ne Erf b\nf Relu e"
    model = toys.frozen(folder / "model.pb", text)
    toys.recipe(folder / "recipe.pb", model, "e", "x c")
    (folder / "recipe.pattern").rename(folder / "pattern.pb")
    for name in ("recipe", "pattern"):
        made = load(folder / f"{name}.pb", name.capitalize())
        (folder / f"{name}.pbtxt").write_text(to_text(made))
        (folder / f"golden-{name}.pb").write_bytes((GOLDEN / "recipes" / f"{name}.pb").read_bytes())
    shutil.copy(GOLDEN / "recipes" / "node_def.pbtxt", folder)
    (folder / "node.pbtxt").write_text(
        'name: "fused"\nop: "Fused"\ninput: "x"\ninput: "c"\nattr {\n key: "T"\n value { type: DT_FLOAT }\n}\n'
    )


def _tables(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (folder / "pairs.tsv").write_text("text\ttext2\tlabel\n" + WORDS)
    (folder / "bare.tsv").write_text(WORDS)
    (folder / "pairs.csv").write_text('text,text2,label\n"the cat, sat",mat,1\n"a ""word""",dog,0\n')
    (folder / "texts.txt").write_text(WORDS.replace("\t", " "))
    (folder / "sst2").write_text("1 the cat sat\n0 the dog ran\n")
    rows = [dict(zip(("text", "text2", "label"), line.split("\t"), strict=True)) for line in WORDS.splitlines()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    out = io.BytesIO()
    with pyarrow.CompressedOutputStream(out, "gzip") as stream:
        stream.write(WORDS.encode())
        stream.flush()
        (folder / "texts.txt.gz").write_bytes(out.getvalue())
    for name in ("ranges.json", "ranges.txt"):
        shutil.copy(GOLDEN / "ranges" / name, folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "onnx": _onnx, "tensorflow": _tensorflow, "checkpoints": _checkpoints, "sentences": _sentences,
    "tokenizers": _tokenizers, "artifacts": _artifacts, "recipes": _recipes, "tables": _tables,
    "requests": write_requests,
}  # fmt: skip


def make(home: Path) -> Path:
    """All seeds, in a new folder."""
    shutil.rmtree(home, ignore_errors=True)
    for name, maker in MAKERS.items():
        (home / name).mkdir(parents=True)
        maker(home / name)
    return home
