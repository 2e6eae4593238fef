"""Makes the zoo's TensorFlow 2 models: Hugging Face's TF classes and tf-models-official; TensorFlow 1's by tf1.py.

Run by workshop.py in a process of its own with build/legacy on the path.
"""

import logging
import math
from pathlib import Path

import numpy as np
import tensorflow as tf
import transformers
from official.nlp.modeling.networks.bert_encoder import BertEncoderV2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from transformers.activations_tf import ACT2FN
from zoo.cases import POSITIONS, VOCABULARY, Cases, kinds, weight, work
from zoo.makers import tf1
from zoo.makers.tf1 import signature_tensors

ACT2FN["gelu_sum"] = lambda x: x * 0.5 * (1.0 + tf.math.erf(x / math.sqrt(2.0)))  # as TensorFlow wrote it before Erfc
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}


def configure(recipe: dict) -> transformers.PretrainedConfig:
    """The configuration of a tiny Hugging Face model."""
    sizes, family = recipe["sizes"], recipe["family"]
    shared = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "num_labels": 2 if "Question" in recipe["head"] else 3,
    }
    shared |= {"pad_token_id": recipe.get("pad", 0), **recipe.get("config", {})}
    act = recipe.get("act", "gelu")
    if family == "distilbert":
        own = {"dim": sizes["hidden"], "n_heads": sizes["heads"], "n_layers": sizes["layers"]}
        return transformers.DistilBertConfig(**own, hidden_dim=sizes["inner"], activation=act, **shared)
    own = {"hidden_size": sizes["hidden"], "num_attention_heads": sizes["heads"], "intermediate_size": sizes["inner"]}
    own |= {"num_hidden_layers": sizes["layers"], "hidden_act": act}
    return getattr(transformers, CLASSES[family] + "Config")(**own, **shared)


def randomise(model, seed: int) -> None:
    """Random weights by name."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        if variable.dtype.is_floating:
            variable.assign(weight(variable.name, tuple(variable.shape), random))


def hugging_face(recipe: dict, folder: Path) -> None:
    """A stock TF model as a SavedModel with one dynamic signature, or that function frozen."""
    model = getattr(transformers, "TF" + CLASSES[recipe["family"]] + recipe["head"])(configure(recipe))
    model.build_in_name_scope()
    randomise(model, recipe.get("seed", 0))
    names, wanted = recipe["inputs"], recipe["outputs"]
    shape = recipe.get("static") or [None, None]
    specs = {name: tf.TensorSpec(shape, tf.int32, name=name) for name in names}

    @tf.function(input_signature=[specs])
    def serve(inputs):
        made = model(inputs, training=False)
        return {name: made[name] for name in wanted if name != "hidden_states"} | (
            {"hidden_states": tf.stack(made["hidden_states"])} if "hidden_states" in wanted else {}
        )

    cases = Cases()
    for kind, arrays in kinds(recipe):
        inputs = {name: tf.constant(value, tf.int32) for name, value in zip(names, arrays, strict=False)}
        made = model(inputs, training=False, output_hidden_states=True)
        outputs = {name: np.stack(made[name]) if name == "hidden_states" else made[name] for name in wanted}
        cases.add(kind, inputs, outputs, made["hidden_states"])
    if recipe["form"] == "frozen":
        freeze(serve.get_concrete_function(), folder, names, cases)
        return
    if recipe["form"] == "pretrained":  # as save_pretrained does: every call function, training ones too
        model.save(folder / "saved_model", include_optimizer=False, signatures={"serving_default": serve})
    else:
        holder = tf.Module()
        holder.kept, holder.serve = model.variables, serve
        tf.saved_model.save(holder, folder / "saved_model", signatures={"serving_default": serve})
    cases.save(folder, signature_tensors(folder / "saved_model"))


def freeze(function, folder: Path, names: list[str], cases: Cases) -> None:
    """One GraphDef file with the variables as constants."""
    frozen = convert_variables_to_constants_v2(function)
    tf.io.write_graph(frozen.graph, str(folder), "model.pb", as_text=False)
    outputs = dict(zip(sorted(function.structured_outputs), frozen.outputs, strict=True))
    inputs = {name: next(t.name for t in frozen.inputs if name in t.name) for name in names}
    cases.save(folder, {"inputs": inputs, "outputs": {name: tensor.name for name, tensor in outputs.items()}})


def official(recipe: dict, folder: Path) -> None:
    """tf-models-official's encoder with the signature that TF Hub's BERT models have."""
    sizes = recipe["sizes"]
    acts = {"relu": tf.nn.relu, "gelu_erf": lambda x: tf.nn.gelu(x, approximate=False)}
    more = {"inner_activation": acts[recipe["act"]]} if recipe["act"] in acts else {}  # its own default is tanh GELU
    encoder = BertEncoderV2(
        vocab_size=VOCABULARY,
        hidden_size=sizes["hidden"],
        num_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        inner_dim=sizes["inner"],
        max_sequence_length=POSITIONS,
        type_vocab_size=2,
        dict_outputs=True,
        **more,
        **recipe.get("config", {}),
    )
    names = ("input_word_ids", "input_mask", "input_type_ids")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}
    encoder({name: tf.ones([1, 4], tf.int32) for name in names})
    randomise(encoder, recipe.get("seed", 0))

    @tf.function(input_signature=[specs])
    def serve(inputs):
        made = encoder(inputs, training=False)
        layers = {f"encoder_outputs_{i}": value for i, value in enumerate(made["encoder_outputs"])}
        every = {"default": made["pooled_output"], **layers, **made}
        return {name: every[name] for name in recipe["outputs"]}

    holder = tf.Module()
    holder.kept, holder.serve = encoder.variables, serve
    signatures = {"serving_default": serve} | ({"again": serve} if recipe.get("signatures") == 2 else {})
    tf.saved_model.save(holder, folder / "saved_model", signatures=signatures)
    cases = Cases()
    for kind, arrays in kinds(recipe):
        inputs = {name: tf.constant(value, tf.int32) for name, value in zip(names, arrays, strict=True)}
        made = encoder(inputs, training=False)
        embedded = encoder.get_embedding_layer()(inputs["input_word_ids"])
        positions, types = encoder._position_embedding_layer(embedded), encoder._type_embedding_layer(inputs[names[2]])
        embedded += positions + types
        embedded = encoder._embedding_norm_layer(embedded)
        if encoder._embedding_projection is not None:
            embedded = encoder._embedding_projection(embedded)
        states = [embedded, *made["encoder_outputs"]]
        cases.add(kind, inputs, serve(inputs), states)
    cases.save(folder, signature_tensors(folder / "saved_model"))


def make(recipe: dict, folder: Path) -> None:
    """The model, and what TensorFlow says for every kind of mask."""
    tf.keras.backend.clear_session()
    {"hf": hugging_face, "official": official, "tf1": tf1.make}[recipe["source"]](recipe, folder)


if __name__ == "__main__":
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    logging.getLogger("absl").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    work(make)
