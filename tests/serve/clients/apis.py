"""Speaks to a server with stock clients of embedding and reranking services, as their users do: its URL and an output
file in; what they returned, as JSON, out. tests/serve/test_clients.py runs it with build/clients."""

import json
import sys
from pathlib import Path

import cohere
import numpy as np
import openai
from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings

TEXTS = ["the cat sat", "the dog ran on the mat ."]


def speak(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    langchain = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model="none", check_embedding_ctx_length=False, max_retries=0
    )
    hugging = HuggingFaceEndpointEmbeddings(model="any/name", huggingfacehub_api_token="none")
    hugging.client = InferenceClient(url)
    question = {"query": "a cat", "documents": TEXTS, "model": "ranker"}
    first, second = cohere.Client("none", base_url=url), cohere.ClientV2("none", base_url=url)
    best = first.rerank(**question, top_n=1, return_documents=True).results
    return {
        "openai": [found.embedding for found in client.embeddings.create(model="none", input=TEXTS).data],
        "langchain-openai": [*langchain.embed_documents(TEXTS[:1]), langchain.embed_query(TEXTS[1])],
        "langchain-huggingface": [*hugging.embed_documents(TEXTS[:1]), hugging.embed_query(TEXTS[1])],
        "hub": np.concatenate([hugging.client.feature_extraction(text) for text in TEXTS]).tolist(),
        "similarity": hugging.client.sentence_similarity(TEXTS[0], other_sentences=TEXTS),
        "cohere": [[one.index, one.relevance_score] for one in second.rerank(**question).results],
        "cohere best": [[one.index, one.relevance_score, one.document.text] for one in best],
        "models": [model.id for model in client.models.list()],
        "unknown": refused(lambda: client.embeddings.create(model="nothing", input="a"), openai.NotFoundError),
        "empty": refused(lambda: client.embeddings.create(model="none", input=[]), openai.UnprocessableEntityError),
    }


def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind} was expected")


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(speak(sys.argv[1])))
