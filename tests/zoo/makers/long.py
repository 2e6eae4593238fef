"""Makes models with positions for 128 tokens, for tests that run one model at many sizes: those of tensorflow.py and
tf1.py, and tf-models-official's classifier, also frozen.

Run by workshop.py in a process of its own with build/legacy on the path.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
from official.nlp.modeling.models.bert_classifier import BertClassifier
from official.nlp.modeling.networks.bert_encoder import BertEncoder
from zoo import cases
from zoo.makers import tensorflow, tf1


def weight(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """As in the zoo, but the wider a product, the smaller its weights, as training leaves them."""
    values = cases.weight(name, shape, random)
    is_product = len(shape) > 1 and "embedding" not in name.lower()
    return (values * min(1.0, 24 / np.prod(shape) ** 0.5) ** 0.5).astype(np.float32) if is_product else values


tensorflow.POSITIONS = tf1.POSITIONS = 160
tensorflow.weight = tf1.weight = weight


def official(recipe: dict, folder: Path) -> None:
    """tf-models-official's encoder, perhaps under its classifier; a SavedModel as Keras writes it, or frozen."""
    sizes = recipe["sizes"]
    encoder = BertEncoder(
        vocab_size=cases.VOCABULARY, hidden_size=sizes["hidden"], num_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], inner_dim=sizes["inner"], max_sequence_length=tensorflow.POSITIONS,
        type_vocab_size=2, dict_outputs=not recipe["classifier"],
    )  # fmt: skip
    model = BertClassifier(encoder, num_classes=3) if recipe["classifier"] else encoder
    tensorflow.randomise(model, 0)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}

    @tf.function(input_signature=[specs])
    def serve(inputs):
        made = model(inputs, training=False)
        return {"logits": made} if recipe["classifier"] else {name: made[name] for name in recipe["outputs"]}

    if recipe["form"] == "frozen":
        tensorflow.freeze(serve.get_concrete_function(), folder, names, cases.Cases())
    else:
        model.save(folder / "saved_model", include_optimizer=False, signatures={"serving_default": serve})
        cases.Cases().save(folder, tf1.signature_tensors(folder / "saved_model"))


def make(recipe: dict, folder: Path) -> None:
    """The model; what it answers is for the test to find out."""
    official(recipe, folder) if recipe["source"] == "official" else tensorflow.make(recipe, folder)


if __name__ == "__main__":
    cases.work(make)
