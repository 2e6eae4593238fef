"""Models of every TensorFlow family with positions for 128 tokens, each as a SavedModel and frozen, of sizes that are
like BERT-base's and odd ones; made together on first use by makers/long.py. `get(name)` -> Long."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from zoo import workshop
from zoo.cases import NAMES

BASE = {"layers": 2, "hidden": 128, "heads": 2, "inner": 512}  # heads and inner width as BERT-base has them
WHOLE = {"layers": 1, "hidden": 768, "heads": 12, "inner": 3072}
ODD = {"layers": 3, "hidden": 65, "heads": 5, "inner": 99}


def _hugging_face(family: str, head: str, outputs: tuple[str, ...] = ("logits",)) -> dict:
    roberta = family == "roberta"
    return {
        "source": "hf", "family": family, "head": head, "act": "gelu", "outputs": outputs, "kinds": ["full"],
        "inputs": NAMES if family == "bert" else NAMES[:2], "pad": 1 if roberta else 0,
        "config": {"layer_norm_eps": 1e-5} if roberta else {},
    }  # fmt: skip


_OFFICIAL = {"source": "official", "inputs": ("input_word_ids", "input_mask", "input_type_ids")}
_TF1 = {"source": "tf1", "inputs": ("input_ids", "input_mask", "segment_ids"), "kinds": ["full"]}
_FAMILIES = {
    "bert-classifier": _hugging_face("bert", "ForSequenceClassification"),
    "bert-question": _hugging_face("bert", "ForQuestionAnswering", ("start_logits", "end_logits")),
    "roberta": _hugging_face("roberta", "ForSequenceClassification"),
    "distilbert": _hugging_face("distilbert", "ForSequenceClassification"),
    "official": {**_OFFICIAL, "classifier": False, "outputs": ("sequence_output", "pooled_output")},
    "official-classifier": {**_OFFICIAL, "classifier": True, "outputs": ("logits",)},
    "tf1": {**_TF1, "classifier": True, "outputs": ("probabilities",)},
}
RECIPES = {
    f"{family}-{form}": {**recipe, "form": form, "sizes": BASE if (number % 2 == 0) == (form == "frozen") else ODD}
    for number, (family, recipe) in enumerate(_FAMILIES.items())
    for form in ("saved_model", "frozen")
}
RECIPES["bert-whole-saved_model"] = {**_FAMILIES["bert-classifier"], "form": "saved_model", "sizes": WHOLE}


@dataclass(frozen=True)
class Long:
    """One of them: the recipe, the model's path, and what inputs and outputs are called."""

    name: str
    recipe: dict
    path: Path

    @cached_property
    def tensors(self) -> dict[str, dict[str, str]]:
        """The names of inputs and outputs -> tensors of the graph."""
        return json.loads((self.path.parent / "tensors.json").read_text())


def get(name: str) -> Long:
    """The model of that name, made."""
    recipe = RECIPES[name]
    return Long(name, recipe, _place() / name / ("model.pb" if recipe["form"] == "frozen" else "saved_model"))


@cache
def _place() -> Path:
    makers = (workshop.HERE / "makers" / f"{module}.py" for module in workshop.MAKERS["long"])
    whole = json.dumps([RECIPES, *(path.read_text() for path in makers)])
    folder = workshop.PLACE / f"long-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [{"folder": str(folder / name), "recipe": recipe} for name, recipe in RECIPES.items()]
    if missing := [job for job in jobs if not Path(job["folder"]).is_dir()]:
        workshop.start("long", missing, folder)
    return folder
