/** Examples: requests for every protocol that a server speaks, with its own address and model. */

/**
 * @param {string} address
 * @param {{ model: string, head: string, key: boolean }} served
 * @returns {Record<string, string>}
 */
export function examples(address, { model, head, key }) {
  const host = new URL(address).hostname;
  const sent = key ? ' \\\n  -H "authorization: Bearer $KEY"' : '';
  const curl = (/** @type {string} */ path, /** @type {unknown} */ body) => `curl ${address}${path}${sent} \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body)}'`;
  const secret = key ? 'os.environ["KEY"]' : '"none"';
  const own = /** @type {Record<string, [string, unknown]>} */ ({
    none: ['/embed', { inputs: ['what a film', 'what a waste'] }],
    sequence: ['/predict', { inputs: 'what a film' }],
    token: ['/tag', { inputs: 'Angela Merkel was born in Hamburg.' }],
    question: ['/answer', { inputs: { question: 'Where was she born?', context: 'She was born in Hamburg.' } }],
    masked: ['/embed_sparse', { inputs: 'what a film' }],
  })[head] ?? ['/embed', { inputs: 'what a film' }];
  const found = /** @type {Record<string, string>} */ ({ 'HTTP, as text-embeddings-inference': curl(...own) });
  if (head === 'none') {
    found['Similarity'] = curl('/similarity', { inputs: { source_sentence: 'what a film', sentences: ['a great movie', 'rain at noon'] } });
    found['OpenAI client'] = `${key ? 'import os\n' : ''}from openai import OpenAI\n\nclient = OpenAI(base_url="${address}/v1", api_key=${secret})\nanswer = client.embeddings.create(model="${model}", input=["what a film"])\nprint(answer.data[0].embedding[:4])`;
  }
  if (head === 'sequence') found['Rerank, as Cohere and Jina'] = curl('/v1/rerank', { query: 'what is a film?', documents: ['a motion picture', 'a fruit'] });
  found['Tokens'] = curl('/tokenize', { inputs: 'what a film' });
  found['Open Inference Protocol, HTTP'] = curl(`/v2/models/${model}/infer`, { inputs: [{ name: 'text', datatype: 'BYTES', shape: [1, 1], data: ['what a film'] }] });
  found['Open Inference Protocol, gRPC'] = `import numpy, tritonclient.grpc as triton\n\nclient = triton.InferenceServerClient("${host}:8081")  # or the port of --grpc-port\ntext = triton.InferInput("text", [1, 1], "BYTES")\ntext.set_data_from_numpy(numpy.array([["what a film"]], object))\nprint(client.infer("${model}", [text]${key ? ', headers={"authorization": "Bearer KEY"}' : ''}).get_response())`;
  found['SageMaker'] = curl('/invocations', own[1]);
  found['Prometheus'] = `curl ${address}/metrics${sent}`;
  found['Load test'] = `fusebert load-test ${address}${key ? ' --api-key-file key.txt' : ''} --rate 100 --duration 30s`;
  return found;
}
