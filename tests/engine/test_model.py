"""Model: texts in, answers out; bad input refused; safe under threads and over time."""

import gc
import threading
import time

import numpy as np
import pytest
import stock
from checkpoints import make_checkpoint
from memory import growth, resident

import fusebert
from fusebert import FusebertError
from fusebert.engine.answers import Label, Span

TEXTS = ["the cat is red", "what is the dog", "a b c d e f g h", "", "blue"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for head in stock.HEADS:
        made[head] = stock.make_reader(tmp_path_factory.mktemp(head), head, max_position_embeddings=40)
    wide = {"hidden": 384, "heads": 6, "inner": 1536, "layers": 1}
    made["wide"] = stock.make(tmp_path_factory.mktemp("wide"), "bert", sizes=wide)
    return made


def test_encode_keeps_the_order_and_ignores_the_grouping(folders):
    model = fusebert.load(folders["none"])
    want = np.stack([model.encode([text])[0] for text in TEXTS])
    assert np.array_equal(model.encode(TEXTS), want)
    assert np.array_equal(model.encode(TEXTS, batch_tokens=1), want)
    assert np.allclose(np.linalg.norm(want, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling(folders, pooling):
    from transformers import BertTokenizerFast

    tokens = BertTokenizerFast(vocab=str(folders["none"] / "vocab.txt"))(TEXTS, padding=True, return_tensors="np")
    hidden = stock.run(stock.load(folders["none"]), **tokens)["last_hidden_state"]
    mask = tokens["attention_mask"][..., None]
    want = {
        "mean": (hidden * mask).sum(1) / mask.sum(1),
        "cls": hidden[:, 0],
        "max": np.where(mask == 1, hidden, -np.inf).max(1),
    }[pooling]
    got = fusebert.load(folders["none"]).encode(TEXTS, pooling=pooling, normalize=False)
    assert stock.error(got, want) <= 1e-5


def test_pairs_differ_from_single_texts(folders):
    model = fusebert.load(folders["none"])
    pair, single = model.encode([("the cat", "the dog")]), model.encode(["the cat the dog"])
    assert not np.allclose(pair, single)


def test_predict_labels(folders):
    model = fusebert.load(folders["sequence"])
    logits = stock.run(
        stock.load(folders["sequence"], "sequence"),
        np.array([[2, stock.WORDS.index("the"), stock.WORDS.index("cat"), 3]]),
    )["logits"][0]
    (label,) = model.predict(["the cat"])
    shares = np.exp(logits) / np.exp(logits).sum()
    assert isinstance(label, Label)
    assert label.label == f"LABEL_{shares.argmax()}"
    assert np.allclose(list(label.scores.values()), shares, atol=1e-5)
    assert label.score == max(label.scores.values())


def test_predict_spans_answers_and_words(folders):
    (spans,) = fusebert.load(folders["token"]).predict(["the cat"])
    assert [(s.text, s.start, s.end) for s in spans] == [("the", 0, 3), ("cat", 4, 7)]
    (answer,) = fusebert.load(folders["question"]).predict([("who is red", "the cat is red")])
    assert isinstance(answer, Span)
    assert answer.text
    assert answer.text == "the cat is red"[answer.start : answer.end]
    (words,) = fusebert.load(folders["masked"]).predict(["the [MASK] is [MASK]"])
    assert len(words) == 2
    assert all(len(w) == 5 and w[0][1] >= w[4][1] for w in words)


def test_texts_are_cut_to_what_the_model_can_hold(folders):
    assert np.isfinite(fusebert.load(folders["none"]).encode(["a " * 100])).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.run([[1, 2], [3]]), "input_ids"),
        (lambda m: m.run([1, 2]), "two-dimensional"),
        (lambda m: m.run([[0.5]]), "integers"),
        (lambda m: m.run([[10**6]]), "token id 1000000 is outside 0 to"),
        (lambda m: m.run([[-1]]), "token id -1"),
        (lambda m: m.run([[1] * 41]), "positions for 40"),
        (lambda m: m.run([[1, 2]], token_type_ids=[[0, 7]]), "token type 7"),
        (lambda m: m.run([[1, 2]], token_type_ids=[[0]]), "token_type_ids has shape"),
        (lambda m: m.run([[1, 2]], [[1]]), "attention_mask has shape"),
        (lambda m: m.run([[1, 2]], [[1, 2]]), "only 0 and 1"),
        (lambda m: m.run([[1, 2]], [3]), "lengths"),
        (lambda m: m.run([[1, 2]], np.full((1, 1, 1, 2), np.nan)), "NaN"),
        (lambda m: m.run([[1, 2]], np.zeros((2, 1, 1, 2))), "attention_mask has shape"),
        (lambda m: m.run([[1, 2]], np.zeros((1, 3, 2, 2))), "attention_mask has shape"),
        (lambda m: m.run([[1, 2]], [[1, 2], [1]]), "different lengths"),
        (lambda m: m.encode({"a": 1}), "list of texts"),
        (lambda m: m.encode({"a", "b"}), "list of texts"),
        (lambda m: m.encode(b"a"), "list of texts"),
        (lambda m: m.encode(("a", "b")), r"a pair or two texts: give \[\(first, second\)\]"),
        (lambda m: m.encode(["a"], batch_size=0), "batch_size"),
        (lambda m: m.encode(["a"], output_value="token_embeddings"), "encode_tokens"),
        (lambda m: m.encode(["a"], device="cuda"), "CPU"),
        (lambda m: m.encode(["a"], precision="int8"), "fusebert.load"),
        (lambda m: m.encode(["a"], truncate_dim=8), "first columns"),
        (lambda m: m.encode([3]), "a text is a string"),
        (lambda m: m.encode(None), "list of texts"),
        (lambda m: m.encode([float("nan")]), "a text is a string"),
        (lambda m: m.encode(["a"], batch_tokens="x"), "batch_tokens"),
        (lambda m: m.encode(["a"], pooling="sum"), "mean, cls, max"),
        (lambda m: m.encode(["a"], batch_tokens=0), "batch_tokens"),
        (lambda m: m.predict(["a"]), "no head"),
    ],
)
def test_bad_input_is_one_clear_sentence(folders, call, sentence):
    with pytest.raises(FusebertError, match=sentence):
        call(fusebert.load(folders["none"]))


@pytest.mark.parametrize("threads", [1, 2])
def test_empty_batches_run(folders, threads):
    model = fusebert.load(folders["none"], threads=threads)
    assert model.run(np.zeros((0, 5), int))["last_hidden_state"].shape == (0, 5, 64)
    assert model.run(np.zeros((3, 0), int))["last_hidden_state"].shape == (3, 0, 64)
    assert not model.run([[1, 2]], [[0, 0]], padding="skip")["last_hidden_state"].any()
    assert not fusebert.load(folders["token"], threads=threads).run([[1, 2]], [[0, 0]])["logits"].any()
    assert model.encode([]).shape == (0, 64)


def test_observed_ranges_make_int8_static(folders):
    fp32 = fusebert.load(folders["none"])
    ranges = fp32.observe(TEXTS)
    assert ranges.shape == (3, 4, 2)
    assert (ranges[..., 0] < ranges[..., 1]).all()
    static = fusebert.load(folders["none"], "int8", ranges=ranges)
    assert static.plan.static
    assert stock.cosine(static.encode(TEXTS), fp32.encode(TEXTS)).min() > 0.98
    for bad in (ranges[:1], ranges * np.nan, ranges[..., ::-1], "x"):
        with pytest.raises(FusebertError, match="ranges"):
            fusebert.load(folders["none"], "int8", ranges=bad)
    with pytest.raises(FusebertError, match="not to bf16"):
        fusebert.load(folders["none"], "bf16", ranges=ranges)


def test_profile_names_every_step(folders):
    seconds = fusebert.load(folders["none"]).profile([[1, 2, 3]])
    assert list(seconds) == ["qkv", "attention", "attention_out", "ffn_in", "ffn_out"]
    assert min(seconds.values()) > 0
    assert fusebert.load(folders["none"]).profile([[1, 2]], np.zeros((1, 4, 1, 2))).keys() == seconds.keys()


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_threads_calling_one_model_get_the_right_answers(folders, threads):
    model = fusebert.load(folders["none"], "int8", threads=threads)
    inputs = [np.random.default_rng(i).integers(0, len(stock.WORDS), (i + 1, 20)) for i in range(8)]
    want = [model.run(ids)["last_hidden_state"] for ids in inputs]
    wrong = []

    def call(i: int) -> None:
        wrong.extend(i for _ in range(20) if not np.array_equal(model.run(inputs[i])["last_hidden_state"], want[i]))

    callers = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_thousand_loads_and_frees_leave_memory_flat(folders):
    def load_and_run() -> None:
        fusebert.load(folders["none"], "int8", threads=2).run([[1, 2, 3]])

    assert growth(load_and_run, times=333) < 1 << 20


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child_can_run_and_let_go(folders, precision, used):
    import os
    import signal

    model = fusebert.load(folders["none"], precision, threads=2)
    want = fusebert.load(folders["none"], precision, threads=2).run([[1, 2, 3]])["last_hidden_state"]
    if used:
        model.run([[1, 2, 3]])
    time.sleep(0.2)  # until the pool's threads sleep, which a child must not wait for
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        same = np.array_equal(model.run([[1, 2, 3]])["last_hidden_state"], want)
        del model
        gc.collect()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_does_not_grow_with_slowly_growing_inputs(folders, threads):
    model = fusebert.load(folders["wide"], threads=threads)
    model.run(np.ones((1, 8), int))
    before = resident()
    for length in range(8, 500, 4):
        model.run(np.ones((1, length), int))
    assert resident() - before < 40 << 20


def test_the_isa_is_settled_when_a_model_is_loaded(folders, monkeypatch):
    model = fusebert.load(folders["none"])
    want = model.run([[1, 2, 3]])["last_hidden_state"]
    for name in ("plain", "bogus"):
        monkeypatch.setenv("FUSEBERT_ISA", name)
        assert np.array_equal(model.run([[1, 2, 3]])["last_hidden_state"], want)


def test_an_interrupt_while_observing_is_passed_on(folders):
    from fusebert.values.batch import Batch

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    rows = np.zeros((3, 64), np.float32)
    with pytest.raises(KeyboardInterrupt):
        fusebert.load(folders["none"]).engine.encoder.run(rows, Batch.ragged([3]), observer=interrupted)


def test_models_say_what_they_use(folders):
    model = fusebert.load(folders["none"], "int8", threads=1)
    assert model.threads == 1
    assert 0 < model.bytes < 1 << 20
    for threads in (-3, 0, 1.5, 1 << 40, "two"):
        with pytest.raises(FusebertError, match="threads"):
            fusebert.load(folders["none"], threads=threads)
    with pytest.raises(FusebertError, match="fp32, bf16, int8, int8-bf16"):
        fusebert.load(folders["none"], "fp8")
    with pytest.raises(FusebertError, match="does not exist"):
        fusebert.load(folders["none"] / "nothing")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_ragged_rows_are_those_of_a_padded_batch(tmp_path, family):
    model = fusebert.load(make_checkpoint(tmp_path / family, family), threads=1)
    lengths = [3, 0, 5, 1]
    ids = np.random.default_rng(0).integers(2, 9, (4, 5))
    mask = np.arange(5) < np.array(lengths)[:, None]
    want = model.run(ids, mask.astype(np.int64))["last_hidden_state"][mask]
    offsets = np.cumsum([0, *lengths])
    assert np.array_equal(model.rows(ids[mask], offsets), want)
    assert model.rows([], [0]).shape == (0, model.network.encoder.hidden_size)
    for broken in ([0, 3], [1, 9], [0, 5, 3, 9], []):
        with pytest.raises(FusebertError, match="offsets"):
            model.rows(ids[mask], broken)
    with pytest.raises(FusebertError, match="token_type_ids"):
        model.rows(ids[mask], offsets, [0])
    with pytest.raises(FusebertError, match="positions for"):
        model.rows(np.ones(999, int), [0, 999])


@pytest.mark.parametrize("head", ["none", "sequence", "token", "question", "masked"])
def test_the_head_on_ragged_rows_gives_the_bits_of_a_padded_run(tmp_path, head):
    model = fusebert.load(make_checkpoint(tmp_path / head, head=head), threads=1)
    lengths = [3, 5, 1]
    ids = np.random.default_rng(0).integers(2, 9, (3, 5))
    mask = np.arange(5) < np.array(lengths)[:, None]
    offsets = np.cumsum([0, *lengths])
    got = model.head(model.rows(ids[mask], offsets), offsets)
    outputs = model.run(ids, mask.astype(np.int64), padding="skip")
    if head == "question":
        want = np.stack([outputs["start_logits"], outputs["end_logits"]], -1)[mask]
    else:
        want = outputs["pooler_output"] if head == "none" else outputs["logits"]
        want = want if head in ("none", "sequence") else want[mask]
    assert np.array_equal(got, want)
    if head in ("none", "sequence"):
        with pytest.raises(FusebertError, match="reads rows of each sequence"):
            model.head(model.rows([2], [0, 1, 1]), [0, 1, 1])


def test_the_tokenizer_is_there_where_the_folder_has_one(tmp_path):
    assert fusebert.load(make_checkpoint(tmp_path / "without")).tokenizer is None
    tokenizer = fusebert.load(make_checkpoint(tmp_path / "with", vocab=True)).tokenizer
    assert tokenizer is not None
    assert tokenizer.max_length == 20
