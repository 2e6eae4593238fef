"""Stock transformers models with random weights, saved as checkpoints: what fusebert's answers are compared with."""

from pathlib import Path

import numpy as np
import torch
import transformers

ODD = {"hidden": 312, "heads": 12, "inner": 600, "layers": 2}  # 12 heads of 26
SMALL = {"hidden": 64, "heads": 4, "inner": 130, "layers": 3}

HEADS = {
    "none": "Model",
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "question": "ForQuestionAnswering",
    "masked": "ForMaskedLM",
}
NAMES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
NAMES |= {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}

SPOKEN = [*"abcdefgh", "red", "green", "blue", "is", "are", "the", "cat", "dog", "what", "who", "sat", "ran"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SPOKEN]


def make(folder: Path, family: str, head: str = "none", seed: int = 0, sizes: dict | None = None, **config) -> Path:
    """Saves a random model; weights are wide enough that attention and activations do something."""
    sizes = sizes or SMALL
    name = NAMES[family]
    fields = {
        "vocab_size": 211,
        "hidden_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["inner"],
        "max_position_embeddings": 520,
        "initializer_range": 0.06,
        "num_labels": 2 if head == "question" else 3,
        "pad_token_id": 1 if NAMES[family] in ("Roberta", "XLMRoberta", "Camembert") else 0,
    }
    if family == "distilbert":
        own = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        own |= {"intermediate_size": "hidden_dim"}
        fields = {own.get(field, field): value for field, value in fields.items()}
    if family == "electra":
        fields["embedding_size"] = 40
    made = getattr(transformers, f"{name}Config")(**{**fields, **config})
    torch.manual_seed(seed)
    model = getattr(transformers, name + HEADS[head])(made).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms, which start as zeros and ones
                parameter += 0.1 * torch.randn_like(parameter)
            if "embeddings" in parameter_name and parameter.ndim == 2:
                parameter += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def make_reader(folder: Path, head: str = "none", **config) -> Path:
    """Saves a random BERT that reads texts of SPOKEN words: its vocabulary is WORDS."""
    make(folder, "bert", head, vocab_size=len(WORDS), **config)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def load(folder: Path, head: str = "none", attention: str = "eager"):
    """The stock model of a checkpoint."""
    kind = {"none": "AutoModel"}.get(head, f"AutoModel{HEADS[head]}")
    return getattr(transformers, kind).from_pretrained(folder, attn_implementation=attention).eval()


def run(model, input_ids: np.ndarray, attention_mask: np.ndarray | None = None, token_type_ids=None, **more) -> dict:
    """Its outputs as NumPy arrays."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
    inputs = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items() if value is not None}
    with torch.no_grad():
        outputs = model(**inputs, **more)
    return {
        name: tuple(v.numpy() for v in value) if isinstance(value, tuple) else value.numpy()
        for name, value in outputs.items()
        if name != "past_key_values"
    }


def masks(batch: int, length: int, kind: str, seed: int = 0) -> np.ndarray:
    """0/1 rows with padding right, left, in holes, or none; the first row is always full, every row sees something."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    for row in mask[1:]:
        cut = int(random.integers(0, length))
        if kind == "right":
            row[length - cut :] = 0
        elif kind == "left":
            row[:cut] = 0
        elif kind == "holes":
            row[:] = random.random(length) < 0.6
            row[random.integers(0, length)] = 1
    return mask


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Per row along the last axis."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1), 1e-30)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error as a share of the scale of what is wanted."""
    return float(np.abs(got - want).max() / np.abs(want).max())
