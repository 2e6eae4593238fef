/** Results: what a model answered, drawn: tokens, scores, entities and answers marked in their text, a heat map. */
import { draw, make } from './element.js';

/** @typedef {{ label: string, score: number }} Score */
/** @typedef {{ start: number, end: number, label?: string, score: number }} Span */

/** @param {{ text: string, special: boolean }[]} tokens */
export function tokens(tokens) {
  return make('div', { className: 'tokens', role: 'group', 'aria-label': `${tokens.length} tokens` },
    tokens.map((token) => make('span', { className: token.special ? 'token special' : 'token' }, token.text)));
}

/** @param {Score[]} scores */
export function scores(scores) {
  return make('div', { className: 'stack scores' }, scores.map(({ label, score }) => make('div', { className: 'score' }, make('span', {}, label),
    draw('svg', { viewBox: '0 0 100 12', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, draw('rect', { width: 100, height: 12, rx: 2 }),
      draw('rect', { width: Math.max(0.5, Math.min(1, Math.max(0, score)) * 100), height: 12, rx: 2 })),
    make('span', {}, score.toFixed(4)))));
}

/** A text with places marked. Places count characters, of which some are two units of a string here.
 * @param {string} text @param {Span[]} spans */
export function marked(text, spans) {
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < at) continue;
    parts.push(letters.slice(at, span.start).join(''), make('mark', {}, letters.slice(span.start, span.end).join(''), make('small', {}, `${span.label ?? ''} ${span.score.toFixed(3)}`.trim())));
    at = span.end;
  }
  return make('p', { className: 'marked' }, parts, letters.slice(at).join(''));
}

/** Cosines of all texts with all. @param {string[]} texts @param {number[][]} vectors */
export function heat(texts, vectors) {
  const lengths = vectors.map((vector) => Math.hypot(...vector) || 1);
  const cosine = (/** @type {number} */ i, /** @type {number} */ j) => vectors[i].reduce((sum, value, k) => sum + value * vectors[j][k], 0) / lengths[i] / lengths[j];
  const name = (/** @type {number} */ i) => (texts[i].length > 34 ? `${texts[i].slice(0, 33)}…` : texts[i]);
  const cell = (/** @type {number} */ i, /** @type {number} */ j) => {
    const value = cosine(i, j);
    const td = make('td', {}, value.toFixed(3));
    const share = Math.round(Math.max(0, Math.min(1, value)) * 45);
    td.style.background = `color-mix(in srgb, var(--accent) ${share}%, var(--panel))`;
    return td;
  };
  return make('div', { className: 'heat', tabIndex: 0, role: 'region', 'aria-label': 'Similarities' }, make('table', {},
    make('thead', {}, make('tr', {}, make('td', {}), texts.map((_, i) => make('th', { scope: 'col' }, String(i + 1))))),
    make('tbody', {}, texts.map((_, i) => make('tr', {}, make('th', { scope: 'row' }, `${i + 1}  ${name(i)}`), texts.map((__, j) => cell(i, j)))))));
}
