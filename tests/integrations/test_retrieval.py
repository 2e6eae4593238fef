"""LangChain, LlamaIndex, Haystack, Chroma, FastEmbed, DSPy and txtai: their own stores find by our vectors, and where
they have an interface for it, cross-encoders rerank."""

import asyncio

import numpy as np
import pytest
import stock

import fusebert
from fusebert.errors import FusebertError

TEXTS = ["the cat sat", "a red dog ran", "what is blue", "who ran"]
QUERY = "the cat"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return stock.make_reader(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return stock.make_reader(tmp_path_factory.mktemp("judge"), "sequence", num_labels=1)


@pytest.fixture(scope="module")
def nearest(encoder):
    """Texts by similarity to the query, as our own vectors have it."""
    model = fusebert.load(encoder)
    return [TEXTS[i] for i in np.argsort(-(model.encode(TEXTS) @ model.encode(QUERY)))]


@pytest.fixture(scope="module")
def ranked(judge):
    scores = fusebert.load(judge).score([(QUERY, text) for text in TEXTS])
    return [(TEXTS[i], pytest.approx(float(scores[i]))) for i in np.argsort(-scores, kind="stable")]


def test_langchain(encoder, judge, nearest, ranked):
    pytest.importorskip("langchain_core", reason="run make test-integrations")
    from langchain_core.documents import Document
    from langchain_core.vectorstores import InMemoryVectorStore

    from fusebert.integrations.langchain import FusebertEmbeddings, FusebertRerank

    store = InMemoryVectorStore.from_texts(TEXTS, FusebertEmbeddings(fusebert.load(encoder)))
    assert [found.page_content for found in store.similarity_search(QUERY, k=4)] == nearest
    rerank = FusebertRerank(model=fusebert.load(judge), top_n=2)
    documents = [Document(page_content=text, metadata={"place": i}) for i, text in enumerate(TEXTS)]
    best = rerank.compress_documents(documents, QUERY)
    assert [(d.page_content, d.metadata["relevance_score"]) for d in best] == ranked[:2]
    assert all(TEXTS[d.metadata["place"]] == d.page_content for d in best)
    assert "relevance_score" not in documents[0].metadata


def test_llama_index(encoder, judge, nearest, ranked):
    pytest.importorskip("llama_index.core", reason="run make test-integrations")
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    from fusebert.integrations.llama_index import FusebertEmbedding, FusebertRerank

    embedding = FusebertEmbedding(fusebert.load(encoder))
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedding)
    found = index.as_retriever(similarity_top_k=4).retrieve(QUERY)
    assert [node.node.get_content() for node in found] == nearest
    assert asyncio.run(embedding.aget_query_embedding(QUERY)) == embedding.get_query_embedding(QUERY)
    best = FusebertRerank(fusebert.load(judge), top_n=2).postprocess_nodes(found, query_str=QUERY)
    assert [(node.node.get_content(), node.score) for node in best] == ranked[:2]


def test_haystack(encoder, judge, nearest, ranked):
    pytest.importorskip("haystack", reason="run make test-integrations")
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from fusebert.integrations.haystack import FusebertDocumentEmbedder, FusebertRanker, FusebertTextEmbedder

    store = InMemoryDocumentStore()
    documents = [Document(content=text) for text in TEXTS]
    store.write_documents(FusebertDocumentEmbedder(str(encoder)).run(documents)["documents"])
    assert documents[0].embedding is None
    pipeline = Pipeline()
    pipeline.add_component("embed", FusebertTextEmbedder(str(encoder)))
    pipeline.add_component("find", InMemoryEmbeddingRetriever(store))
    pipeline.add_component("rank", FusebertRanker(str(judge)))
    pipeline.connect("embed.embedding", "find.query_embedding")
    pipeline.connect("find.documents", "rank.documents")
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["fusebert.integrations.haystack"])
    for tried in (pipeline, again):
        given = {"embed": {"text": QUERY}, "rank": {"query": QUERY, "top_k": 2}}
        got = tried.run(given, include_outputs_from={"find"})
        assert [d.content for d in got["find"]["documents"]] == nearest
        assert [(d.content, d.score) for d in got["rank"]["documents"]] == ranked[:2]


def test_chroma(encoder, nearest, tmp_path):
    chromadb = pytest.importorskip("chromadb", reason="run make test-integrations")
    from fusebert.integrations.chroma import FusebertEmbeddingFunction

    client = chromadb.PersistentClient(str(tmp_path), settings=chromadb.Settings(anonymized_telemetry=False))
    made = client.create_collection("texts", embedding_function=FusebertEmbeddingFunction(str(encoder)))
    made.add(ids=[str(i) for i in range(4)], documents=TEXTS)
    for collection in (made, client.get_collection("texts")):  # which knows its function by what was stored
        assert collection.query(query_texts=[QUERY], n_results=4)["documents"][0] == nearest


def test_fastembed(encoder):
    fastembed = pytest.importorskip("fastembed", reason="run make test-integrations")
    from fusebert.integrations.fastembed import add

    model = fusebert.load(encoder)
    add("ours/reader", model)
    found = fastembed.TextEmbedding("ours/reader", threads=1)
    wanted = model.encode(TEXTS)
    assert fastembed.TextEmbedding.get_embedding_size("ours/reader") == found.embedding_size == wanted.shape[1]
    assert (np.array(list(found.embed(iter(TEXTS), batch_size=3))) == wanted).all()
    assert (next(iter(found.query_embed(QUERY))) == model.encode(QUERY)).all()
    assert (np.array(list(found.passage_embed(TEXTS))) == wanted).all()
    assert found.token_count(TEXTS) == sum(len(tokens.ids) for tokens in model.tokenizer(TEXTS))
    for name in ("OURS/reader", "BAAI/bge-small-en-v1.5"):
        with pytest.raises(FusebertError, match="choose another name"):
            add(name, model)


def test_dspy(encoder, nearest):
    dspy = pytest.importorskip("dspy", reason="run make test-integrations")
    from dspy.retrievers import Embeddings

    embedder = dspy.Embedder(fusebert.load(encoder).encode, caching=False)
    assert embedder(TEXTS).shape == (4, len(embedder(QUERY)))
    assert Embeddings(corpus=TEXTS, embedder=embedder, k=4)(QUERY).passages == nearest


def test_txtai(encoder, nearest):
    txtai = pytest.importorskip("txtai", reason="run make test-integrations")
    model = fusebert.load(encoder)
    index = txtai.Embeddings(method="external", transform=lambda texts: model.encode(texts), content=True)
    index.index(TEXTS)
    assert [found["text"] for found in index.search(QUERY, 4)] == nearest
