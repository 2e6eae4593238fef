/** Live: charts of what the server does, from its server-sent events. They are fetched, so that a key can go with them. */
import { draw, fill, make } from './element.js';

const KEPT = 90; // seconds
/** @typedef {Record<string, number | null>} Value */

const CHARTS = /** @type {[string, string[], (value: number) => string][]} */ ([
  ['texts per second', ['rate'], (value) => value.toLocaleString('en', { maximumFractionDigits: 1 })],
  ['latency p50, p99 (ms)', ['p50', 'p99'], (value) => value.toFixed(1)],
  ['texts waiting', ['queue'], (value) => String(value)],
  ['batches full', ['fill'], percent],
  ['padding avoided', ['padding_avoided'], percent],
  ['refused per second', ['refused'], (value) => String(value)],
]);

/** @param {number} value */
function percent(value) {
  return `${Math.round(value * 100)}%`;
}

/**
 * Shows charts, and keeps them up to date for as long as the page is open.
 * @param {HTMLElement} place
 * @param {Record<string, string>} headers
 */
export async function live(place, headers) {
  /** @type {Value[]} */
  const values = [];
  for (;;) {
    try {
      const response = await fetch('/page/events', { headers });
      if (response.body) await read(response.body, (value) => {
        values.push(value);
        if (values.length > KEPT) values.shift();
        fill(place, CHARTS.map(([name, keys, shown]) => chart(name, keys, shown, values)));
      });
    } catch { /* the server may be started again */ }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

/** @param {NonNullable<Response['body']>} stream @param {(value: Value) => void} take */
async function read(stream, take) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop() ?? '';
    for (const event of events) take(JSON.parse(event.replace(/^data: /, '')));
  }
}

/** @param {string} name @param {string[]} keys @param {(value: number) => string} shown @param {Value[]} values */
function chart(name, keys, shown, values) {
  const now = keys.map((key) => values[values.length - 1][key]);
  const most = Math.max(...values.flatMap((value) => keys.map((key) => value[key] ?? 0)), 1e-9);
  const text = now.every((value) => value === null) ? '–' : now.map((value) => (value === null ? '–' : shown(value))).join(' / ');
  const lines = keys.map((key, i) => draw('path', { class: i ? 'second' : 'first', d: way(values.map((value) => value[key]), most) }));
  return make('div', { className: 'chart' }, make('p', {}, name), make('b', {}, text), draw('svg', { viewBox: '0 0 100 34', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, lines));
}

/** A line through values, with gaps where there are none. @param {(number | null)[]} values @param {number} most */
function way(values, most) {
  let d = '';
  let pen = false;
  values.forEach((value, i) => {
    if (value !== null) d += `${pen ? 'L' : 'M'}${((i + KEPT - values.length) / (KEPT - 1) * 100).toFixed(2)} ${(32 - (value / most) * 30).toFixed(2)}`;
    pen = value !== null;
  });
  return d;
}
