"""around.py FOLDER MODEL...: random models of other packages with an encoder inside, each beside its fused copy.

Prints one line of JSON: by model whether a fused encoder ran, the warnings, whether the answers are the same, and how
far the numbers behind them are apart."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import fusebert.torch
from fusebert.torch.encoder import Fused

fusebert.torch.disable()

TEXT = "Ada Lovelace wrote notes on the engine of Charles Babbage in London 1843 and nobody in Paris read them"
WORDS = TEXT.split()
TEXTS = [TEXT, " ".join(WORDS[:6]), "nobody in London", "the engine"]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def save_encoder(folder: Path, kind: str, **more: Any) -> Path:
    """A small random checkpoint with a tokenizer of whole words."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *dict.fromkeys(WORDS), "person", "place", ","])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 70}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(vocabulary), pad_token_id=0, **sizes, **more)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 1.3 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


def deberta(folder: Path) -> Path:
    return save_encoder(
        folder, "DebertaV2", relative_attention=True, position_buckets=32, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0,
        max_position_embeddings=300, max_relative_positions=-1,
    )  # fmt: skip


def gliner(folder: Path, layers: bool) -> tuple[Any, Any]:
    """A model that reads the last layer or all `layers`, and what it finds in the texts, with the scores."""
    from gliner import GLiNER

    config = {
        "model_name": str(deberta(folder)), "span_mode": "markerV0", "fuse_layers": layers, "hidden_size": 48,
        "max_width": 5, "max_len": 200, "dropout": 0.0, "fine_tune": True, "vocab_size": -1,
    }  # fmt: skip
    model = GLiNER.from_config(config)

    def answer(model: Any) -> tuple[Any, np.ndarray]:
        found = [model.predict_entities(text, ["person", "place"], threshold=0.3) for text in TEXTS]
        labels = [[(one["start"], one["end"], one["label"]) for one in own] for own in found]
        return labels, np.array([one["score"] for own in found for one in own])

    return model, answer


def sentence(folder: Path) -> Any:
    import sentence_transformers.sentence_transformer.modules as modules
    from sentence_transformers import SentenceTransformer

    body = modules.Transformer(str(save_encoder(folder, "MPNet", max_position_embeddings=100)))
    return SentenceTransformer(modules=[body, modules.Pooling(48, "mean"), modules.Normalize()], device="cpu")


def encode(model: Any) -> tuple[Any, np.ndarray]:
    return None, model.encode(TEXTS)


def setfit(folder: Path) -> tuple[Any, Any]:
    from setfit import SetFitModel
    from sklearn.linear_model import LogisticRegression

    body = sentence(folder)
    head = LogisticRegression().fit(body.encode(TEXTS), ["ada", "ada", "town", "thing"])
    model = SetFitModel(model_body=body, model_head=head)
    return model, lambda model: (list(map(str, model.predict(TEXTS))), np.asarray(model.predict_proba(TEXTS)))


def made(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """A model, the module to fuse in it, and what asks it."""
    folder = folder / name
    if name.startswith("gliner"):
        model, answer = gliner(folder, layers=name == "gliner-layers")
        return model, lambda model: model.model, answer
    if name == "setfit":
        model, answer = setfit(folder)
        return model, lambda model: model.model_body, answer
    return sentence(folder), lambda model: model, encode


def main() -> None:
    """Each model in turn."""
    said = {}
    for name in sys.argv[2:]:
        torch.manual_seed(1)
        model, body, answer = made(name, Path(sys.argv[1]))
        with warnings.catch_warnings(record=True) as heard, torch.no_grad():
            warnings.simplefilter("always")
            want_answers, want = answer(model)
            inside = fusebert.torch.optimize(body(model))
            got_answers, got = answer(model)
        assert want.size > 3, f"{name} answers too little to compare: {want}"
        said[name] = {
            "fused": any(isinstance(module, Fused) and module.fusebert.packed for module in inside.modules()),
            "warnings": [str(one.message) for one in heard if "fusebert" in str(one.message)],
            "same_answers": got_answers == want_answers,
            "error": float(np.abs(got - want).max() / np.abs(want).max()) if got.shape == want.shape else 1.0,
        }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
