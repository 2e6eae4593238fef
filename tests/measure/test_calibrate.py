"""Calibration: ranges as they were observed, in files that we and TensorFlow's op read, for static int8 everywhere."""

import json
from contextlib import suppress

import numpy as np
import pytest
import stock
import zoo
from damage import damage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusebert
from fusebert import calibrate, cli
from fusebert.errors import FusebertError
from fusebert.formats.ranges import FORMS, read_factors, write_factors
from fusebert.measure.histogram import Histogram, choose_range
from fusebert.values.plan import PRODUCTS, Product, make_plan
from fusebert.values.traverse import parts

RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(stock.SPOKEN, RANDOM.integers(2, 20))) for _ in range(40)]
RANGES = np.sort(RANDOM.normal(0, 5, (3, 4, 2)).astype(np.float32), axis=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stock.make_reader(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


# ---- files ----


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_come_back_bit_for_bit(tmp_path, form):
    path = tmp_path / "factors"
    for number in (1e-30, 1.0):
        write_factors(path, RANGES * np.float32(number), form, {"method": "minmax"}, overwrite=True)
        assert np.array_equal(read_factors(path), RANGES * np.float32(number))
        assert np.array_equal(read_factors(path, 3), RANGES * np.float32(number))
    with pytest.raises(FusebertError, match="layers"):
        read_factors(path, 4)
    assert [file.name for file in tmp_path.iterdir()] == ["factors"]


def test_the_text_form_is_the_one_that_was_described(tmp_path):
    write_factors(tmp_path / "factors", RANGES)
    lines = (tmp_path / "factors").read_text().splitlines()
    assert [len(line.split()) for line in lines] == [8, 8, 8]
    assert all(len(word) <= 9 + 7 for word in lines[0].split())
    (tmp_path / "one line").write_text(" ".join(lines) + "\n99 surplus")
    assert np.array_equal(read_factors(tmp_path / "one line", 3), RANGES)
    assert np.array_equal(read_factors(tmp_path / "one line", 2), RANGES[:2])


def test_the_name_of_a_file_chooses_its_form(tmp_path):
    write_factors(tmp_path / "factors.json", RANGES, about={"method": "minmax"})
    head = json.loads((tmp_path / "factors.json").read_text())
    assert (head["format"], head["version"], head["method"]) == ("fusebert-factors", 1, "minmax")
    assert list(head["layers"][0]) == list(PRODUCTS)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "0 numbers"),
        ("1 2 3", "3 numbers"),
        ("1 2 x", "neither JSON nor numbers"),
        ("1 2 nan 4 5 6 7 8", "finite"),
        ("2 1 3 4 5 6 7 8", "not above"),
        ("1 2 3 1e99 5 6 7 8", "finite"),
        ("{", "not readable JSON"),
        ("{}", "format must be"),
        ('{"format": "fusebert-factors", "version": 2}', "version 2"),
        ('{"format": "fusebert-factors", "version": 1, "layers": [{"qkv": [1, "x"]}]}', r"layers\[0\].qkv"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path, content, sentence):
    (tmp_path / "factors").write_text(content)
    with pytest.raises(FusebertError, match=sentence):
        read_factors(tmp_path / "factors")


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_refused_or_used(tmp_path, form):
    path = tmp_path / "factors"
    write_factors(path, RANGES, form)

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=damage(path.read_bytes()), layers=st.sampled_from((None, 3)))
    def check(data, layers):
        (tmp_path / "damaged").write_bytes(data)
        with suppress(FusebertError):
            assert np.isfinite(read_factors(tmp_path / "damaged", layers)).all()

    check()


# ---- ranges ----


def test_a_percentile_cuts_evenly_and_entropy_cuts_outliers():
    values = np.random.default_rng(1).normal(0, 1, 200_000).astype(np.float32)
    values[0] = 60
    histogram = Histogram(values.min(), values.max())
    histogram.add(values.reshape(100, -1))
    assert choose_range(histogram, "minmax") == (float(values.min()), 60.0, 0.0)
    low, high, clipped = choose_range(histogram, "percentile", 99.0)
    assert clipped <= 0.01
    assert (low, high) == pytest.approx(np.percentile(values, [0.5, 99.5]), abs=2 * 65 / 4096)
    low, high, clipped = choose_range(histogram, "entropy")
    assert 3 < high < 8
    assert low < -3
    assert clipped == pytest.approx(((values < low) | (values > high)).mean(), abs=1e-5)
    for bad in (("mean", 99.0), ("percentile", 30.0)):
        with pytest.raises(FusebertError, match=bad[0]):
            choose_range(histogram, *bad)


def test_ranges_hold_zero_even_if_nothing_was_seen():
    histogram = Histogram(0, 5)
    histogram.add(np.full(1000, 4.5, np.float32))
    for method in ("percentile", "entropy"):
        low, high, _ = choose_range(histogram, method, 99)
        assert low == 0
        assert 4.5 <= high <= 5
    assert choose_range(Histogram(0, 0), "entropy") == (0, 0, 0)


def test_a_range_too_wide_for_8_bits_is_found_per_token():
    ranges = np.tile(np.array([-1, 1], np.float32), (2, 4, 1))
    ranges[1, 2] = -101, 5
    plan = make_plan("int8", 4, ranges)
    assert plan.blocks[1].first == Product("s8", -1, 1)
    assert plan.blocks[3].first == Product("s8")
    assert plan.static


# ---- the command ----


def test_minmax_is_what_the_model_observes(folder, texts, tmp_path):
    report = calibrate(folder, texts, tmp_path / "factors.json")
    seen = fusebert.load(folder).observe(TEXTS)
    assert np.array_equal(read_factors(tmp_path / "factors.json"), seen)
    rows = report.data()["ranges"]
    assert [row["clipped"] for row in rows] == [0.0] * 12
    assert rows[0]["high"] == pytest.approx(seen[0, 0, 1], rel=1e-3)


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_other_methods_stay_within_what_was_seen(folder, texts, tmp_path, capsys, method):
    words = ["calibrate", folder, "--data", texts, "-o", tmp_path / "factors.txt", "--method", method, "--json"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*map(str, words), "--percentile", "99.5"])
    report = json.loads(capsys.readouterr().out)
    assert not stop.value.code, report
    got, seen = read_factors(tmp_path / "factors.txt", 3), fusebert.load(folder).observe(TEXTS)
    assert (got[..., 0] >= seen[..., 0]).all()
    assert (got[..., 1] <= seen[..., 1]).all()
    assert (got[..., 0] <= 0).all()
    assert (got[..., 1] > 0).all()
    shares = [row["clipped"] for row in report["ranges"]]
    assert 0 < max(shares) <= (0.0051 if method == "percentile" else 0.05)
    assert (got != seen).any()
    with pytest.raises(FusebertError, match="exists"):
        calibrate(folder, texts, tmp_path / "factors.txt")


def test_only_fp32_can_be_observed(folder, texts, tmp_path):
    fusebert.load(folder, "int8").save(tmp_path / "artifact")
    with pytest.raises(FusebertError, match="observed in fp32"):
        calibrate(tmp_path / "artifact", texts, tmp_path / "factors")
    assert not (tmp_path / "factors").exists()
    fusebert.load(folder).save(tmp_path / "exact")
    calibrate(tmp_path / "exact", texts, tmp_path / "factors", samples=3)


# ---- static int8 ----


def test_calibrated_int8_keeps_the_embeddings_of_a_real_model(minilm, tmp_path):
    texts = [f"{who} {what} {when}." for who in ("A man", "The old bank", "Nobody", "Our new engine", "Rain")
             for what in ("is playing a guitar", "raised its rates", "was 40 % faster than before")
             for when in ("yesterday", "in the morning", "although few had expected it to")]  # fmt: skip
    (tmp_path / "texts").write_text("\n".join(texts))
    calibrate(minilm, tmp_path / "texts", tmp_path / "factors")
    exact = fusebert.load(minilm).encode(texts)
    model = fusebert.load(minilm, "int8", ranges=tmp_path / "factors")
    assert model.plan.static
    assert stock.cosine(model.encode(texts), exact).mean() >= 0.99
    assert np.array_equal(
        model.encode(texts), fusebert.load(minilm, "int8", ranges=str(tmp_path / "factors")).encode(texts)
    )


def test_optimize_takes_the_file_for_every_target(folder, texts, tmp_path):
    calibrate(folder, texts, tmp_path / "factors.json")
    fusebert.optimize(folder, tmp_path / "artifact", "int8", verify=False, ranges=tmp_path / "factors.json")
    static = fusebert.load(tmp_path / "artifact")
    assert static.plan.static
    ids = np.random.default_rng(0).integers(0, len(stock.WORDS), (3, 7))
    want = fusebert.load(folder, "int8", ranges=tmp_path / "factors.json").run(ids)["last_hidden_state"]
    assert np.array_equal(static.run(ids)["last_hidden_state"], want)
    onnx = zoo.get("onnx-bert-14-sdpa").make()
    layers = len(fusebert.find(fusebert.read(onnx)).encoders[0].layers)
    write_factors(tmp_path / "onnx", np.tile(np.array([-9, 9], np.float32), (layers, 4, 1)))
    fusebert.optimize(onnx, tmp_path / "static.onnx", "int8", verify=False, ranges=tmp_path / "onnx")
    fused = [node for node in fusebert.read(tmp_path / "static.onnx").nodes if node.op == "fusebert.Encoder"]
    assert list(fused[0].attributes["ranges"]) == [-9.0, 9.0] * 4 * layers
    write_factors(tmp_path / "more.json", np.tile(np.array([-9, 9], np.float32), (layers + 1, 4, 1)))
    for bad, sentence in ((tmp_path / "more.json", "layers"), (tmp_path / "none", "does not exist")):
        with pytest.raises(FusebertError, match=sentence):
            fusebert.optimize(onnx, tmp_path / "x.onnx", "int8", verify=False, ranges=bad)
    with pytest.raises(FusebertError, match="int8"):
        fusebert.optimize(onnx, tmp_path / "x.onnx", "bf16", verify=False, ranges=tmp_path / "onnx")


def test_the_tensorflow_op_takes_the_file(folder, texts, tmp_path):
    tf = pytest.importorskip("tensorflow")
    import fusebert.tensorflow as fused

    calibrate(folder, texts, tmp_path / "factors", method="percentile", percentile=99.9)
    model = fusebert.load(folder, "int8", ranges=tmp_path / "factors")
    tensors = []
    for _, part in parts(model.network.encoder):
        tensors += [array.T if array.ndim == 2 else array for _, array in part.arrays()]
    ids, mask = np.random.default_rng(0).integers(0, len(stock.WORDS), (4, 9)), stock.masks(4, 9, "right")
    states = model.run(ids, mask, output_hidden_states=True, padding="compute")["hidden_states"]
    attributes = {"HiddenSize": 64, "NumAttentionHeads": 4, "IntermediateSize": 130, "HiddenAct": "gelu_erf"}
    got = fused.bert(
        states[0], mask[:, None].astype(np.int32), [np.ascontiguousarray(tensor) for tensor in tensors],
        QuantizableDataType=tf.qint8, QuantizationFactorsPath=str(tmp_path / "factors"), **attributes,
    ).numpy()  # fmt: skip
    assert np.array_equal(got, states[-1])


def test_a_range_of_no_width_is_found_per_token(tmp_path):
    """The op has always taken such files; so does everything else that reads ranges."""
    from fusebert.values.plan import make_plan

    ranges = RANGES.copy()
    ranges[1, 2] = 3
    write_factors(tmp_path / "factors", ranges)
    plan = make_plan("int8", 6, read_factors(tmp_path / "factors", 3))
    assert plan.blocks[3].first == make_plan("int8", 6).blocks[3].first
    assert plan.blocks[1].first.static
    with pytest.raises(FusebertError, match="not above its high"):
        make_plan("int8", 6, -ranges)
