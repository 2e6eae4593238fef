"""The recipe of the MRPC demo: 96 of its clients, each with a connection of its own, get all their answers, and those
are as often right as the model's own."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from checkpoints import make_checkpoint
from safetensors.numpy import load_file, save_file
from serve_process import Served, speak

import fusebert

PROCESSES, CLIENTS, CYCLE = 2, 96, 16  # the recipe has 128 for each: more would show nothing new here
WORDS = ["the", "cat", "sat", "dog", "ran on the mat", "unable", "cats", "dogs !"]
PAIRS = [(f"the {one} sat", f"{other} .") for one in WORDS for other in WORDS]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A model that says yes to half of the pairs."""
    folder = make_checkpoint(tmp_path_factory.mktemp("judge"), head="sequence", labels=2, vocab=True)
    model = fusebert.load(folder, threads=1)
    tokens = [model.tokenizer([pair])[0] for pair in PAIRS]
    logits = [model.run([own.ids], token_type_ids=[own.kinds])["logits"][0] for own in tokens]
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] += np.median([no_yes[1] - no_yes[0] for no_yes in logits])
    save_file(weights, folder / "model.safetensors")
    return folder


def test_96_clients_of_the_demo_get_what_the_model_says(judge, tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    labels = [one.label for one in fusebert.load(judge, threads=1).predict(PAIRS)]
    wanted = ["1" if label == "label 1" else "0" for label in labels]
    assert {wanted.count("0"), wanted.count("1")} == {len(PAIRS) // 2}
    server = Served(judge, "--demo-port", "0", log=tmp_path / "log")

    def process(seed):
        words = (server.demo_port, tmp_path / "pairs.json", CLIENTS // PROCESSES, CYCLE, seed)
        return speak("demo.py", tmp_path / f"{seed}.json", *map(str, words))

    try:
        with ThreadPoolExecutor(PROCESSES) as processes:
            clients = [answers for found in processes.map(process, range(PROCESSES)) for answers in found]
    finally:
        assert server.stop() == 0
    assert [len(answers) for answers in clients] == [CYCLE] * CLIENTS
    for row, prediction, message in (answer for answers in clients for answer in answers):
        assert (prediction, message) == (wanted[row], ("not " if prediction == "0" else "") + "paraphrase!")
