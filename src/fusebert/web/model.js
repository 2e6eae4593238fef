/** Model: what `fusebert explore MODEL --json` tells, fetched; and the words that nodes are looked up by. */

/** @typedef {{ name: string, op: string, inputs: string[], outputs: string[], function: string, group: number }} GraphNode */
/** @typedef {{ label: string, kind: string, parent: number }} Group */
/** @typedef {{ dtype: string | null, shape: (number | string)[] | null, weight?: boolean }} Tensor */
/** @typedef {{ stage: string, rule: string, nodes: string[], result: string, reason: string }} Row */
/** @typedef {{ name: string, op: string, inputs: string[], outputs: string[] }} StageNode */
/** @typedef {{ seeds: string[], barriers: string[], barrier_ops: string[], function: string, error?: string }} Picked */
/** @typedef {{ node: string, function: string, expected: string, found: string, matched: number, form: string, told: string }} Miss */
/**
 * @typedef {object} Model
 * @property {number} number
 * @property {string} path
 * @property {string} kind
 * @property {Record<string, any>} facts
 * @property {string[]} inputs
 * @property {string[]} outputs
 * @property {Record<string, any>[]} encoders
 * @property {Miss[]} misses
 * @property {string[]} notes
 * @property {Group[]} groups
 * @property {GraphNode[]} nodes
 * @property {Record<string, Tensor>} tensors
 * @property {{ translated: StageNode[], lifted: StageNode[], raised: StageNode[] }} stages
 * @property {Row[]} rows
 * @property {{ barrier_ops: Record<string, string[]>, proposals: Picked[] } | null} patterns
 */

/**
 * An answer of the server; an Error with its sentence where it refuses.
 * @param {string} path
 * @param {unknown} [body] sent by POST
 * @returns {Promise<Response>}
 */
export async function ask(path, body) {
  const response = await fetch(path, body === undefined ? {} : {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error((await response.json()).error ?? response.statusText);
  return response;
}

/** @param {number} number @returns {Promise<Model>} */
export async function fetchModel(number) {
  const told = await (await ask(`/api/models/${number}`)).json();
  return { ...told, number, tensors: Object.fromEntries(told.tensors.map((/** @type {{ name: string }} */ one) => [one.name, one])) };
}

/** Saves bytes as a file of the person's own. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A tensor's type and shape, for people. @param {Tensor | undefined} tensor */
export function typed(tensor) {
  if (!tensor) return '?';
  return `${tensor.dtype ?? '?'} [${tensor.shape ? tensor.shape.join(' × ') : '?'}]`;
}

/** The last part of a name, which tells most. @param {string} name */
export function tail(name) {
  const parts = name.split('/').filter(Boolean);
  return parts.slice(-2).join('/') || name;
}

/** Lists by key. @template T @param {Iterable<T>} values @param {(value: T) => string} key @returns {Map<string, T[]>} */
export function grouped(values, key) {
  const found = new Map();
  for (const value of values) {
    const own = key(value);
    const list = found.get(own);
    if (list) list.push(value);
    else found.set(own, [value]);
  }
  return found;
}
