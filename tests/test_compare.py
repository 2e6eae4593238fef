"""The gate of optimize: what counts as the same answers."""

from dataclasses import replace

import numpy as np
import stock

import fusebert
from fusebert.compare import Difference, compare, difference, within
from fusebert.model import Model


def test_a_classifier_whose_labels_flip_does_not_pass(tmp_path):
    model = fusebert.load(stock.make(tmp_path, "bert", "sequence"))
    network, last = model.network, model.network.head.steps[-1]
    noise = np.random.default_rng(0).normal(0, 1, last.linear.weight.shape).astype(np.float32)
    shares = []
    for amount in (0.0, 0.1):
        linear = replace(last.linear, weight=last.linear.weight + amount * noise)
        head = replace(network.head, steps=(*network.head.steps[:-1], replace(last, linear=linear)))
        noisy = Model(replace(network, head=head), model.plan)
        differences = compare(model, noisy)
        shares.append(differences[0].flips)
        assert within(differences, "int8") == (amount == 0)
    assert shares[0] == 0


def test_nan_is_infinitely_wrong():
    rows = np.ones((3, 4), np.float32)
    broken = rows.copy()
    broken[1, 1] = np.nan
    assert difference("last_hidden_state", rows, broken).worst_error == float("inf")
    assert not within([difference("last_hidden_state", rows, broken)], "int8")


def test_tolerances_follow_the_precision():
    slight = Difference("last_hidden_state", 0.01, 0.9995, 0.999)
    assert within([slight], "int8")
    assert within([slight], "bf16")
    assert not within([slight], "fp32")
    assert not within([replace(slight, output="logits", flips=0.2)], "int8")
