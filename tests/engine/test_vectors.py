"""What one pass over texts gives beside embeddings, held against transformers' own logits and rows."""

import shutil

import families
import numpy as np
import pytest
import stock
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import fusebert
from fusebert import FusebertError

TEXTS = ["the cat is red", "what is the dog", "blue"]
PAIRS = [("the cat", "the dog is red"), ("red", "blue")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make_reader(tmp_path_factory.mktemp(head), head) for head in ("none", "sequence", "masked")}


def logits_of(folder, head: str, model: fusebert.Model, text) -> np.ndarray:
    tokens = model.tokenizer([text])[0]
    with torch.no_grad():
        given = {"input_ids": torch.tensor([tokens.ids]), "token_type_ids": torch.tensor([tokens.kinds])}
        return stock.load(folder, head)(**given).logits.numpy()[0]


def test_weights_of_words_are_those_of_splade(folders):
    model = fusebert.load(folders["masked"])
    for text, got in zip(TEXTS, model.encode_sparse(TEXTS), strict=True):
        logits = logits_of(folders["masked"], "masked", model, text)
        want = np.log1p(np.maximum(logits, 0)).max(0)
        assert (np.flatnonzero(want > 1e-5) == got.ids[got.weights > 1e-5]).all()
        assert np.allclose(want[got.ids], got.weights, atol=1e-4)


def test_pairs_are_scored(folders):
    model = fusebert.load(folders["sequence"])
    want = np.array([logits_of(folders["sequence"], "sequence", model, pair) for pair in PAIRS])
    if want.shape[1] > 2:
        with pytest.raises(FusebertError, match="one output, or no and yes"):
            model.score(PAIRS)
        return
    assert np.allclose(model.score(PAIRS, raw=True), want[:, -1], atol=1e-4)
    shares = (
        torch.softmax(torch.tensor(want), 1)[:, 1] if want.shape[1] == 2 else torch.sigmoid(torch.tensor(want[:, 0]))
    )
    assert np.allclose(model.score(PAIRS), shares.numpy(), atol=1e-4)


def test_chunks_have_seen_the_whole_text(folders):
    model = fusebert.load(folders["none"])
    (rows,) = model.encode_tokens([TEXTS[0]])
    (means,) = model.encode_chunks([TEXTS[0]], [[(0, 7), (8, 14)]], normalize=False)
    spans = model.tokenizer([TEXTS[0]])[0].spans
    first = [i for i, span in enumerate(spans) if span[1] and span[0] < 7]
    assert np.allclose(means[0], rows[first].mean(0), atol=1e-6)
    (unit,) = model.encode_chunks([TEXTS[0]], [[(0, 7), (8, 14)]])
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)


def test_a_chunk_without_tokens_is_an_error(folders):
    model = fusebert.load(folders["none"])
    with pytest.raises(FusebertError, match="no token begins in characters 100 to 120"):
        model.encode_chunks([TEXTS[0]], [[(100, 120)]])
    with pytest.raises(FusebertError, match="masked-LM head"):
        model.encode_sparse(TEXTS)


@pytest.mark.parametrize(("pooling", "activation"), [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu")])
def test_folders_of_sparse_encoders(folders, pooling, activation, tmp_path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    parts = MLMTransformer(str(folders["masked"])), SpladePooling(pooling, activation)
    theirs = SparseEncoder(modules=[*parts], device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    want = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    ours = fusebert.load(tmp_path / "theirs")
    ours.save(tmp_path / "artifact")
    for model in (ours, fusebert.load(tmp_path / "artifact")):
        for row, got in zip(want, model.encode_sparse(TEXTS), strict=True):
            assert np.allclose(row[got.ids], got.weights, atol=1e-4)
            assert set(np.flatnonzero(row > 1e-4)) <= set(got.ids)
    with pytest.raises(FusebertError, match="weights of words, as encode_sparse does"):
        ours.encode(TEXTS)


@pytest.mark.parametrize("activation", [None, "Identity"])
def test_scores_are_those_of_cross_encoders(activation, tmp_path):
    from sentence_transformers import CrossEncoder

    stock.make_reader(tmp_path / "made", "sequence", num_labels=1)
    made = CrossEncoder(str(tmp_path / "made"), device="cpu", activation_fn=activation and torch.nn.Identity())
    made.save_pretrained(str(tmp_path / "saved"))
    want = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    assert (want.min() < 0) == (activation is not None)
    ours = fusebert.load(tmp_path / "saved")
    ours.save(tmp_path / "artifact")
    for model in (ours, fusebert.load(tmp_path / "artifact")):
        assert np.allclose(model.score(PAIRS), want, atol=1e-5)
    assert ((ours.score(PAIRS, raw=False) > 0) & (ours.score(PAIRS, raw=False) < 1)).all()


def test_the_heads_of_bge_m3(folders, tmp_path):
    """The larger weight of a word that occurs twice; nothing for special tokens; vectors from the second token on."""
    shutil.copytree(folders["none"], tmp_path / "m3")
    torch.manual_seed(3)
    heads = {"sparse": torch.nn.Linear(64, 1), "colbert": torch.nn.Linear(64, 64)}
    for name, linear in heads.items():
        torch.save(linear.state_dict(), tmp_path / "m3" / f"{name}_linear.pt")
    ours = fusebert.load(tmp_path / "m3")
    ours.save(tmp_path / "artifact")
    texts = ["the cat is the cat", "red unheard-of"]
    tokens = ours.tokenizer(texts)
    for model in (ours, fusebert.load(tmp_path / "artifact")):
        found = zip(
            tokens, model.encode_tokens(texts), model.encode_sparse(texts), model.encode_vectors(texts), strict=True
        )
        for own, rows, words, vectors in found:
            with torch.no_grad():
                weights = torch.relu(heads["sparse"](torch.from_numpy(rows)))[:, 0].numpy()
                wanted = torch.nn.functional.normalize(heads["colbert"](torch.from_numpy(rows[1:])), dim=1).numpy()
            best = {}
            for word, weight, spelled in zip(own.ids, weights, ours.tokenizer.words(own.ids), strict=True):
                if not spelled.startswith("[") and weight > 0:
                    best[word] = max(weight, best.get(word, 0))
            assert list(words.ids) == sorted(best)
            assert np.allclose(words.weights, [best[word] for word in words.ids], atol=1e-5)
            assert np.allclose(vectors, wanted, atol=1e-5)
    torch.save({"weight": torch.ones(2, 64), "bias": torch.ones(2)}, tmp_path / "m3" / "sparse_linear.pt")
    with pytest.raises(FusebertError, match=r"sparse_linear\.pt"):
        fusebert.load(tmp_path / "m3")
    with pytest.raises(FusebertError, match=r"colbert_linear\.pt"):
        fusebert.load(folders["none"]).encode_vectors(texts)


def test_a_folder_like_embedding_gemmas(tmp_path):
    """Means of rows, two dense layers without bias, unit length, and a prompt: as SentenceTransformer.encode."""
    import sentence_transformers.sentence_transformer.modules as modules
    from sentence_transformers import SentenceTransformer

    base, _ = families.make(tmp_path / "base", "gemma")
    words = ["<pad>", "<bos>", "<unk>", *" ".join(TEXTS).split()]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, "<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(base)
    dense = [
        modules.Dense(*sizes, bias=False, activation_function=torch.nn.Identity()) for sizes in ((48, 96), (96, 48))
    ]
    parts = [modules.Transformer(str(base)), modules.Pooling(48, "mean"), *dense, modules.Normalize()]
    theirs = SentenceTransformer(modules=parts, device="cpu", prompts={"query": "what is "})
    theirs.save(str(tmp_path / "saved"))
    ours = fusebert.load(tmp_path / "saved")
    assert stock.error(ours.encode(TEXTS), theirs.encode(TEXTS)) < 1e-4
    assert stock.error(ours.encode(TEXTS, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query")) < 1e-4
