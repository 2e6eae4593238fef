/** Inspector: what is known of a node: its tensors with types and shapes, and its weights with their numbers. */
import { draw, fill, make } from './element.js';
import { ask, tail, typed } from './model.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./scene.js').Scene} Scene */

/**
 * @param {HTMLElement} place
 * @param {Scene} scene
 * @param {number} node
 * @param {{ choose: (node: number) => void, pick: ((node: number, as: string) => void) | null }} on
 */
export function showNode(place, scene, node, on) {
  const { model } = scene;
  const one = scene.all[node];
  const own = model.nodes[node];
  const way = scene.around(one.group).map((g) => model.groups[g].label);
  fill(place,
    make('div', { className: 'stack' },
      make('div', {}, make('p', { className: 'dim' }, way.join(' › ') || 'Graph'), make('h2', { id: 'node-title' }, one.title), make('p', { className: 'mono name' }, one.name)),
      own && make('dl', { className: 'facts' }, make('dt', {}, 'sits in'), make('dd', {}, own.function || 'main graph')),
      own && on.pick && make('div', { className: 'row' },
        ...['seed', 'barrier'].map((as) => make('button', { type: 'button', on: { click: () => on.pick?.(node, as) } }, as === 'seed' ? 'Use as output' : 'Use as input'))),
      tensors('Reads', one.reads, scene, on, false),
      tensors('Makes', one.makes, scene, on, true)));
}

/**
 * @param {string} title
 * @param {string[]} names
 * @param {Scene} scene
 * @param {{ choose: (node: number) => void }} on
 * @param {boolean} made
 */
function tensors(title, names, scene, on, made) {
  if (!names.length) return null;
  return make('section', { className: 'stack tight' }, make('h3', {}, title), names.map((name) => {
    const tensor = scene.model.tensors[name];
    const others = made ? scene.readers[scene.maker.get(name) ?? -1] ?? [] : [scene.maker.get(name)].filter((i) => i !== undefined);
    return make('div', { className: 'tensor' },
      make('p', { className: 'mono name' }, name),
      make('p', { className: 'dim' }, `${tensor?.weight ? 'weight ' : ''}${typed(tensor)}`),
      tensor?.weight && weight(scene.model, name),
      others.slice(0, 6).map((i) => make('button', { type: 'button', className: 'quiet link', on: { click: () => on.choose(/** @type {number} */ (i)) } },
        `${made ? 'to' : 'from'} ${scene.all[/** @type {number} */ (i)].title} ${tail(scene.all[/** @type {number} */ (i)].name)}`)));
  }));
}

/** The numbers of a weight, fetched when the node is shown. @param {Model} model @param {string} name */
function weight(model, name) {
  const place = make('div', { className: 'histogram', 'aria-busy': 'true' });
  ask(`/api/models/${model.number}/weight?name=${encodeURIComponent(name)}`).then((answer) => answer.json()).then((facts) => {
    place.removeAttribute('aria-busy');
    if (!facts.bins) return;
    fill(place, histogram(facts.bins, `Histogram of ${name}: from ${round(facts.min)} to ${round(facts.max)}`),
      make('p', { className: 'dim ends' }, make('span', {}, round(facts.min)), make('span', {}, `mean ${round(facts.mean)}, std ${round(facts.std)}`), make('span', {}, round(facts.max))));
  }, (error) => fill(place, make('p', { className: 'message bad' }, error.message)));
  return place;
}

/** @param {number[]} bins @param {string} label */
export function histogram(bins, label) {
  const most = Math.max(...bins, 1);
  const wide = 240 / bins.length;
  const bars = bins.map((count, i) => {
    const h = count ? Math.max(1, (count / most) * 46) : 0;
    return draw('rect', { x: (i * wide).toFixed(2), y: (48 - h).toFixed(2), width: Math.max(0.5, wide - 1).toFixed(2), height: h.toFixed(2), rx: 1 });
  });
  return draw('svg', { viewBox: '0 0 240 48', role: 'img', 'aria-label': label, preserveAspectRatio: 'none' }, bars);
}

/** @param {number} value */
function round(value) {
  return Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

/** What is known of the whole model. @param {HTMLElement} place @param {Model} model */
export function showModel(place, model) {
  const plain = Object.entries(model.facts).filter(([name]) => name !== 'title');
  const encoders = model.encoders.map((one, i) => make('section', { className: 'stack tight' },
    make('h3', {}, model.encoders.length > 1 ? `Encoder ${i + 1}` : 'Encoder'),
    facts(Object.entries(one).filter(([, value]) => value !== '' && !(Array.isArray(value) && !value.length)))));
  fill(place, make('div', { className: 'stack' },
    make('div', {}, make('p', { className: 'dim' }, model.kind), make('h2', {}, model.path.split('/').pop() || model.path)),
    !model.encoders.length && make('p', { className: 'message bad' }, 'No encoder was found. The tab Match shows what came nearest.'),
    encoders, make('section', { className: 'stack tight' }, make('h3', {}, 'Graph'), facts(plain)), model.notes.map((note) => make('p', { className: 'message' }, note))));
}

/** @param {[string, unknown][]} entries */
function facts(entries) {
  return make('dl', { className: 'facts' }, entries.flatMap(([name, value]) => [make('dt', {}, name.replaceAll('_', ' ')), make('dd', {}, Array.isArray(value) ? value.join(', ') : typeof value === 'number' ? (Number.isInteger(value) ? value.toLocaleString('en') : round(value)) : String(value))]));
}
