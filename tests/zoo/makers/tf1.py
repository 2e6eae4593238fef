"""Makes the zoo's TensorFlow 1 models: BERT as the first public code wrote it, under tf.compat.v1.

The graph follows that model's known structure: main graph, variables behind `read` Identity nodes, 2-D activations, a
[B, S, S] mask of ones * mask, (1 - mask) * -10000, layer norm as batch_normalization, tanh GELU.
"""

import math
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.compat import v1
from zoo.cases import POSITIONS, VOCABULARY, Cases, kinds, weight


def signature_tensors(saved: Path) -> dict:
    """Signature name -> tensor name, read from the file."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel.FromString((saved / "saved_model.pb").read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    sides = {"inputs": signature.inputs, "outputs": signature.outputs}
    return {side: {name: info.name for name, info in infos.items()} for side, infos in sides.items()}


class Bert:
    """Builds the graph; the recipe decides sizes, activation, kind of variables and lookups."""

    def __init__(self, recipe: dict) -> None:
        self.recipe, self.sizes = recipe, recipe["sizes"]
        self.random = np.random.default_rng(recipe.get("seed", 0))

    def variable(self, name: str, shape: list[int]) -> tf.Tensor:
        full = f"{v1.get_variable_scope().name}/{name}"
        start = v1.constant_initializer(weight(full, tuple(shape), self.random))
        return v1.get_variable(name, shape, initializer=start, use_resource=self.recipe.get("resource", False))

    def dense(self, x: tf.Tensor, width: int, name: str, activation=None) -> tf.Tensor:
        with v1.variable_scope(name):
            kernel = self.variable("kernel", [int(x.shape[-1]), width])
            bias = self.variable("bias", [width])
            if x.shape.rank > 2:
                y = tf.nn.bias_add(tf.tensordot(x, kernel, [[x.shape.rank - 1], [0]]), bias)
            else:
                y = tf.nn.bias_add(tf.matmul(x, kernel), bias)
            return activation(y) if activation else y

    def layer_norm(self, x: tf.Tensor) -> tf.Tensor:
        with v1.variable_scope("LayerNorm"):
            beta, gamma = self.variable("beta", [int(x.shape[-1])]), self.variable("gamma", [int(x.shape[-1])])
            mean, variance = v1.nn.moments(x, [-1], keep_dims=True)
            return v1.nn.batch_normalization(x, mean, variance, beta, gamma, self.recipe.get("epsilon", 1e-12))

    def act(self, x: tf.Tensor) -> tf.Tensor:
        kind = self.recipe.get("act", "gelu_tanh")
        if kind == "relu":
            return tf.nn.relu(x)
        if kind == "gelu_erf":
            return x * (0.5 * (1.0 + tf.math.erf(x / tf.sqrt(2.0))))
        return x * (0.5 * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3)))))

    def embed(self, ids: tf.Tensor, types: tf.Tensor, batch, length) -> tf.Tensor:
        width = self.sizes["hidden"]
        with v1.variable_scope("embeddings"):
            table = self.variable("word_embeddings", [VOCABULARY, width])
            flat = tf.reshape(tf.expand_dims(ids, axis=[-1]), [-1])
            if self.recipe.get("one_hot"):
                rows = tf.matmul(tf.one_hot(flat, depth=VOCABULARY), table)
            else:
                rows = tf.gather(table, flat)
            x = tf.reshape(rows, [batch, length, width])
            kinds_table = self.variable("token_type_embeddings", [2, width])
            rows = tf.matmul(tf.one_hot(tf.reshape(types, [-1]), depth=2), kinds_table)
            x += tf.reshape(rows, [batch, length, width])
            with tf.control_dependencies([v1.assert_less_equal(length, POSITIONS)]):
                positions = self.variable("position_embeddings", [POSITIONS, width])
                x += tf.reshape(tf.slice(positions, [0, 0], [length, -1]), [1, length, width])
            return self.layer_norm(x)

    def attend(self, x: tf.Tensor, mask: tf.Tensor, batch, length) -> tf.Tensor:
        heads, size = self.sizes["heads"], self.sizes["hidden"] // self.sizes["heads"]
        query = self.dense(x, heads * size, "query")
        key = self.dense(x, heads * size, "key")
        value = self.dense(x, heads * size, "value")
        query = tf.transpose(tf.reshape(query, [batch, length, heads, size]), [0, 2, 1, 3])
        key = tf.transpose(tf.reshape(key, [batch, length, heads, size]), [0, 2, 1, 3])
        scores = tf.matmul(query, key, transpose_b=True)
        scores = tf.multiply(scores, 1.0 / math.sqrt(float(size)))
        scores += (1.0 - tf.cast(tf.expand_dims(mask, axis=[1]), tf.float32)) * -10000.0
        shares = tf.nn.softmax(scores)
        value = tf.transpose(tf.reshape(value, [batch, length, heads, size]), [0, 2, 1, 3])
        context = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        return tf.reshape(context, [batch * length, heads * size])

    def layer(self, x: tf.Tensor, mask: tf.Tensor, batch, length) -> tf.Tensor:
        width = self.sizes["hidden"]
        with v1.variable_scope("attention"):
            with v1.variable_scope("self"):
                context = self.attend(x, mask, batch, length)
            with v1.variable_scope("output"):
                attended = self.layer_norm(self.dense(context, width, "dense") + x)
        with v1.variable_scope("intermediate"):
            inner = self.dense(attended, self.sizes["inner"], "dense", self.act)
        with v1.variable_scope("output"):
            return self.layer_norm(self.dense(inner, width, "dense") + attended)

    def build(self, ids: tf.Tensor, mask: tf.Tensor, types: tf.Tensor) -> dict[str, tf.Tensor]:
        shape = [s if s else tf.shape(ids)[i] for i, s in enumerate(ids.shape.as_list())]
        batch, length = shape
        width = self.sizes["hidden"]
        with v1.variable_scope("bert"):
            embedded = self.embed(ids, types, batch, length)
            with v1.variable_scope("encoder"):
                wide = tf.cast(tf.reshape(mask, [batch, 1, length]), tf.float32)
                wide = tf.ones(shape=tf.stack([batch, length, 1]), dtype=tf.float32) * wide
                x = tf.reshape(embedded, [-1, width])
                states = []
                for i in range(self.sizes["layers"]):
                    with v1.variable_scope(f"layer_{i}"):
                        x = self.layer(x, wide, batch, length)
                    states.append(x)
                states = [tf.reshape(state, [batch, length, width]) for state in states]
            with v1.variable_scope("pooler"):
                first = tf.squeeze(states[-1][:, 0:1, :], axis=1)
                pooled = self.dense(first, width, "dense", tf.tanh)
        made = {"sequence_output": states[-1], "pooled_output": pooled}
        if self.recipe.get("classifier"):
            table, bias = self.variable("output_weights", [3, width]), self.variable("output_bias", [3])
            made["probabilities"] = tf.nn.softmax(tf.nn.bias_add(tf.matmul(pooled, table, transpose_b=True), bias))
        self.states = [embedded, *states]
        return made


def make(recipe: dict, folder: Path) -> None:
    """The model in the form asked for: saved_model (variables), frozen (.pb) or text (.pbtxt)."""
    names = recipe["inputs"]
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        shape = recipe.get("static") or [None, None]
        feeds = {name: v1.placeholder(tf.int32, shape, name=name) for name in names}
        model = Bert(recipe)
        made = model.build(*feeds.values())
        made = {name: made[name] for name in recipe["outputs"]}
        session.run(v1.global_variables_initializer())
        cases = Cases()
        for kind, arrays in kinds(recipe):
            inputs = {name: value.astype(np.int32) for name, value in zip(names, arrays, strict=True)}
            fed = {feeds[name]: value for name, value in inputs.items()}
            outputs, hidden = session.run([made, model.states], fed)
            cases.add(kind, inputs, outputs, hidden)
        if recipe["form"] == "saved_model":
            v1.saved_model.simple_save(session, str(folder / "saved_model"), feeds, made)
        else:
            wanted = [tensor.op.name for tensor in made.values()]
            frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), wanted)
            text = recipe["form"] == "text"
            tf.io.write_graph(frozen, str(folder), "model.pbtxt" if text else "model.pb", as_text=text)
        sides = {"inputs": feeds, "outputs": made}
        cases.save(folder, {side: {n: t.name for n, t in tensors.items()} for side, tensors in sides.items()})
