/** The server's page: try the model, see what the server does, copy requests. It asks the calls that clients ask. */
import { copyButton, fill, make, part, theme } from './element.js';
import { examples } from './examples.js';
import { live } from './live.js';
import { heat, marked, scores, tokens } from './results.js';

/** @typedef {{ model_id: string, model_dtype: string, model_type: { head: string, pooling: string }, family: string, hidden_size: number, labels: string[], max_input_length: number, models: string[], version: string, fingerprint: string }} Info */

const first = /** @type {HTMLTextAreaElement} */ (part('first'));
const second = /** @type {HTMLTextAreaElement} */ (part('second'));
const SAMPLES = /** @type {Record<string, [string, string]>} */ ({
  none: ['A man is playing a guitar.\nSomeone plays an instrument.\nThe stock market fell sharply on Monday.', ''],
  sequence: ['What a wonderful film.\nWhat a waste of an evening.', ''],
  token: ['Angela Merkel was born in Hamburg.', ''],
  question: ['Where was she born?', 'Angela Merkel was born in Hamburg and grew up in the east of the country.'],
});
let key = sessionStorage.getItem('key') ?? '';
/** @type {Info | undefined} */
let info;

/** @returns {Record<string, string>} */
function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** @param {string} path @param {unknown} [body] */
async function ask(path, body) {
  const response = await fetch(path, body === undefined ? { headers: headers() } : { method: 'POST', headers: { ...headers(), 'content-type': 'application/json' }, body: JSON.stringify(body) });
  const found = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(found.error ?? response.statusText), { status: response.status });
  return { found, headers: response.headers };
}

/** The lines of the first field. */
function lines() {
  return first.value.split('\n').map((line) => line.trim()).filter(Boolean);
}

/** What the model is for, asked by its own call. @param {string} model @param {string} head @param {string[]} texts @param {string} pair */
async function answer(model, head, texts, pair) {
  if (head === 'question') {
    const asked = await ask('/answer', { model, inputs: texts.map((question) => ({ question, context: second.value })) });
    return { ...asked, shown: texts.map((question, i) => make('div', { className: 'result' }, make('h3', {}, question), marked(second.value, [asked.found[i]]))) };
  }
  if (head === 'token') {
    const asked = await ask('/tag', { model, inputs: texts });
    return { ...asked, shown: texts.map((text, i) => make('div', { className: 'result' }, marked(text, asked.found[i]))) };
  }
  if (head === 'sequence') {
    const asked = await ask('/predict', { model, inputs: texts.map((text) => (pair ? [text, pair] : [text])) });
    return { ...asked, shown: texts.map((text, i) => make('div', { className: 'result' }, make('h3', {}, pair ? `${text} / ${pair}` : text), scores([...asked.found[i]].sort((a, b) => b.score - a.score)))) };
  }
  if (head === 'masked') {
    const asked = await ask('/embed_sparse', { model, inputs: texts });
    return { ...asked, shown: texts.map((text, i) => make('div', { className: 'result' }, make('h3', {}, text), make('p', { className: 'dim' }, `${asked.found[i].length} weights of the vocabulary`))) };
  }
  const all = pair ? [...texts, pair] : texts;
  const asked = await ask('/embed', { model, inputs: all });
  return { ...asked, shown: [make('div', { className: 'result' }, make('h3', {}, `Similarity of ${all.length} text${all.length > 1 ? 's' : ''}, vectors of ${asked.found[0].length}`), heat(all, asked.found))] };
}

/** @param {Event} event */
async function run(event) {
  event.preventDefault();
  const texts = lines();
  const pair = part('second-part').hidden ? '' : second.value.trim();
  if (!info || !texts.length) return;
  const result = part('result');
  try {
    const { model_id: model, model_type: { head } } = info;
    const [{ shown, headers: told }, split] = await Promise.all([answer(model, head, texts, pair), ask('/tokenize', { model, inputs: pair ? [...texts, pair] : texts })]);
    fill(part('took'), `${told.get('x-total-time')} ms, of which ${told.get('x-inference-time')} ms in the model; ${told.get('x-compute-tokens')} tokens`);
    fill(result, shown, make('div', { className: 'result' }, make('h3', {}, 'Tokens'), split.found.map(tokens)));
  } catch (error) {
    fill(part('took'));
    fill(result, make('p', { className: 'message bad', role: 'alert' }, error instanceof Error ? error.message : String(error)));
  }
}

/** Shows what is served: the first model, which calls mean where they name none. */
async function load() {
  info = /** @type {Info} */ ((await ask('/info')).found);
  const { model_id: model, model_type: { head, pooling } } = info;
  part('title').textContent = `${model} · ${info.model_dtype}${info.models.length > 1 ? `, and ${info.models.length - 1} more` : ''}`;
  const texts = SAMPLES[head] ?? SAMPLES.sequence;
  [first.value, second.value] = texts;
  part('first-label').textContent = head === 'question' ? 'Questions, one on a line' : 'Texts, one on a line';
  part('second-label').textContent = head === 'question' ? 'Context that holds the answers' : 'Second text of a pair, if there is one';
  part('second-part').hidden = head === 'token' || head === 'masked';
  const told = { family: info.family, head, pooling: head === 'none' ? pooling : '', precision: info.model_dtype, width: info.hidden_size, labels: info.labels.slice(0, 12).join(', '), 'most tokens': info.max_input_length, fingerprint: info.fingerprint, version: info.version };
  fill(part('facts'), Object.entries(told).filter(([, value]) => value !== '').flatMap(([term, value]) => [make('dt', {}, term), make('dd', {}, String(value))]));
  const found = examples(location.origin, { model, head, key: Boolean(key) });
  const select = /** @type {HTMLSelectElement} */ (part('protocol'));
  const show = () => fill(part('example'), make('div', { className: 'copied' }, make('pre', { tabIndex: 0, role: 'region', 'aria-label': 'Request' }, found[select.value]), copyButton(() => found[select.value])));
  fill(select, Object.keys(found).map((one) => make('option', {}, one)));
  select.onchange = show;
  show();
}

/** Loads what the server tells of itself; asks for a key where one is needed, waits where it is not ready. */
async function begin() {
  const status = part('status');
  try {
    await load();
  } catch (error) {
    const { status: code, message } = /** @type {Error & { status?: number }} */ (error);
    part('unlock').hidden = code !== 401;
    fill(status, code === 401 ? (key ? 'This is not the key.' : 'This server wants its API key.') : message);
    if (code !== 401) setTimeout(begin, 1000);
    return;
  }
  status.hidden = true;
  part('unlock').hidden = true;
  part('body').hidden = false;
  live(part('charts'), headers());
}

theme();
part('ask').addEventListener('submit', run);
part('unlock').addEventListener('submit', (event) => {
  event.preventDefault();
  key = /** @type {HTMLInputElement} */ (part('key')).value.trim();
  sessionStorage.setItem('key', key);
  begin();
});
begin();
