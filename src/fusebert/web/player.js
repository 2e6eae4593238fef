/**
 * Player: the match, row by row. A row says which rule was tried on which nodes and what became of them; beside it stands
 * the graph around these nodes before and after. Nothing is computed here: the rows are the finder's.
 */
import { draw, fill, make } from './element.js';
import { layout } from './layout.js';
import { grouped, tail } from './model.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Row} Row */
/** @typedef {import('./model.js').StageNode} StageNode */

const STAGES = ['translate', 'lift', 'recognise', 'match'];
const SHOWN = 28; // nodes of the graph before or after a row
const STATES = /** @type {Record<string, string>} */ ({ translate: 'translated', lift: 'lifted', recognise: 'recognised', match: 'matched' });

export class Player {
  /**
   * @param {HTMLElement} place
   * @param {Model} model
   * @param {(marks: Map<number, string>, centre: number, follow: boolean) => void} show
   */
  constructor(place, model, show) {
    this.model = model;
    this.show = show;
    this.at = -1;
    this.timer = 0;
    const label = (/** @type {{ name: string }} */ node) => node.name;
    this.places = grouped(model.nodes.keys(), (i) => model.nodes[i].name);
    this.before = { translate: grouped(model.nodes, label), lift: grouped(model.stages.translated, label), recognise: grouped(model.stages.lifted, label), match: grouped(model.stages.raised, label) };
    this.after = { translate: this.before.lift, lift: this.before.recognise, recognise: this.before.match, match: this.before.match };
    this.#build(place);
  }

  /** @param {HTMLElement} place */
  #build(place) {
    const { rows, misses } = this.model;
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ click) => make('button', { type: 'button', 'aria-label': label, on: { click } }, text);
    this.range = make('input', { type: 'range', min: '0', max: String(Math.max(0, rows.length - 1)), value: '0', 'aria-label': 'Row of the match', on: { input: () => this.go(Number(this.range?.value)) } });
    this.play = button('Play', 'Play the match', () => this.#toggle());
    this.refusals = make('input', { type: 'checkbox', id: 'only-refused' });
    this.follow = make('input', { type: 'checkbox', id: 'follow', checked: true });
    this.count = make('p', { className: 'dim', role: 'status' });
    this.told = make('div', { className: 'stack tight' });
    const firsts = STAGES.map((stage) => [stage, rows.findIndex((row) => row.stage === stage)]).filter(([, i]) => Number(i) >= 0);
    fill(place, make('div', { className: 'stack' },
      misses.length > 0 && make('section', { className: 'stack tight' }, make('h2', {}, 'Nearest miss'),
        misses.map((miss) => make('button', { type: 'button', className: 'miss', on: { click: () => this.#miss(miss) } }, miss.told))),
      make('section', { className: 'stack tight' }, make('h2', {}, 'The match, rule by rule'),
        make('div', { className: 'row stages' }, firsts.map(([stage, i]) => button(String(stage), `To the first row of ${stage}`, () => this.go(Number(i))))),
        this.range,
        make('div', { className: 'row' }, button('‹', 'Row before', () => this.step(-1)), button('›', 'Next row', () => this.step(1)), this.play,
          make('label', { for: 'follow' }, this.follow, ' follow'), make('label', { for: 'only-refused' }, this.refusals, ' refusals only')),
        this.count, this.told)));
    fill(this.count, `${rows.length.toLocaleString('en')} rows`);
  }

  /** @param {number} by */
  step(by) {
    const { rows } = this.model;
    let i = this.at + by;
    while (this.refusals?.checked && i >= 0 && i < rows.length && rows[i].result) i += by;
    if (i >= 0 && i < rows.length) this.go(i);
    else this.#stop();
  }

  #toggle() {
    if (this.timer) { this.#stop(); return; }
    if (this.play) this.play.textContent = 'Pause';
    this.timer = window.setInterval(() => this.step(1), 220);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = 0;
    if (this.play) this.play.textContent = 'Play';
  }

  /** Shows a row, and what the rows up to it made of the graph. @param {number} i */
  go(i) {
    const { rows } = this.model;
    this.at = i;
    if (this.range) this.range.value = String(i);
    /** @type {Map<number, string>} */
    const marks = new Map();
    for (let k = 0; k < i; k++) {
      const { stage, nodes, result } = rows[k];
      if (!result || stage === 'translate') continue;
      for (const name of nodes) for (const place of this.places.get(name) ?? []) marks.set(place, result === 'view' || result === 'constant' ? 'view' : STATES[stage] ?? 'translated');
    }
    const row = rows[i];
    const places = row.nodes.flatMap((name) => this.places.get(name) ?? []);
    for (const place of places) marks.set(place, row.result ? 'current' : 'refused');
    this.show(marks, places[0] ?? -1, this.follow?.checked ?? true);
    if (this.count) fill(this.count, `Row ${(i + 1).toLocaleString('en')} of ${rows.length.toLocaleString('en')}`);
    if (this.told) fill(this.told, this.#row(row));
  }

  /** @param {Row} row */
  #row(row) {
    const names = row.nodes.length > 3 ? `${tail(row.nodes[row.nodes.length - 1])} and ${row.nodes.length - 1} more` : row.nodes.map(tail).join(', ');
    return [
      make('dl', { className: 'facts' }, [['stage', row.stage], ['rule', row.rule], ['nodes', names], ['result', row.result || 'refused'], ['reason', row.reason]]
        .filter(([, value]) => value).flatMap(([name, value]) => [make('dt', {}, name), make('dd', { className: name === 'result' ? (row.result ? 'good' : 'bad') : '' }, value)])),
      this.#sides(row),
    ];
  }

  /** The graph around the row's nodes, before and after. @param {Row} row */
  #sides(row) {
    const stage = /** @type {keyof Player['before']} */ (row.stage in this.before ? row.stage : 'lift');
    const find = (/** @type {Map<string, StageNode[]>} */ nodes) => row.nodes.flatMap((name) => nodes.get(name) ?? []);
    const before = find(this.before[stage]);
    /** @type {StageNode[]} */
    let after = find(this.after[stage]);
    if (stage === 'match' && row.result === 'block' && before.length) {
      const made = new Set(before.flatMap((node) => node.outputs));
      const reads = [...new Set(before.flatMap((node) => node.inputs))].filter((tensor) => !made.has(tensor));
      after = [{ name: row.rule, op: row.rule, inputs: reads, outputs: before.slice(-1)[0].outputs }];
    }
    const none = row.result === 'view' ? 'Nothing: only the layout changed, which is known from here on.' : row.result === 'constant' ? 'Nothing: it was computed.' : 'Nothing of it is left.';
    return make('div', { className: 'sides' }, side('Before', before, 'Nothing with this name.'), row.result ? side('After', after, none) : side('After', before, 'As before.'));
  }

  /** Paints where the search stopped. @param {import('./model.js').Miss} miss */
  #miss(miss) {
    const places = (this.places.get(miss.node) ?? []).filter((i) => !miss.function || this.model.nodes[i].function === miss.function);
    this.show(new Map(places.map((i) => [i, 'miss'])), places[0] ?? -1, true);
    if (this.count) fill(this.count, places.length ? 'Painted where the search stopped.' : 'The graph has no node of that name.');
    if (this.told) {
      fill(this.told, make('dl', { className: 'facts' }, [['looked for', miss.form], ['expected', miss.expected], ['found', miss.found], ['at', miss.node], ['matched', `${miss.matched} nodes`]]
        .flatMap(([name, value]) => [make('dt', {}, name), make('dd', { className: name === 'found' ? 'bad' : '' }, value)])));
    }
  }
}

/** A small graph. @param {string} title @param {StageNode[]} nodes @param {string} none */
function side(title, nodes, none) {
  const few = nodes.slice(0, SHOWN);
  const maker = new Map(few.flatMap((node, i) => node.outputs.map((tensor) => [tensor, i])));
  /** @type {[number, number][]} */
  const edges = [];
  few.forEach((node, to) => {
    for (const from of new Set(node.inputs.map((tensor) => maker.get(tensor)))) if (from !== undefined && from !== to) edges.push([from, to]);
  });
  const laid = layout(few.map(() => ({ w: 104, h: 26 })), edges);
  const lines = edges.map(([a, b]) => {
    const points = [[laid.x[a] + 52, laid.y[a] + 26], ...(laid.ways.get(`${a},${b}`) ?? []), [laid.x[b] + 52, laid.y[b]]];
    return draw('polyline', { points: points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ') });
  });
  const boxes = few.map((node, i) => draw('g', { transform: `translate(${laid.x[i].toFixed(1)} ${laid.y[i].toFixed(1)})` },
    draw('title', {}, node.name), draw('rect', { width: 104, height: 26, rx: 6 }),
    draw('text', { x: 52, y: 17, 'text-anchor': 'middle' }, node.op.length > 15 ? `${node.op.slice(0, 14)}…` : node.op)));
  const w = Math.max(laid.w, 104) + 4;
  const h = Math.max(laid.h, 26) + 4;
  const text = few.map((node) => node.op).join(', ');
  return make('figure', {}, make('figcaption', {}, title, nodes.length > SHOWN && make('span', { className: 'dim' }, ` ${SHOWN} of ${nodes.length}`)),
    few.length ? draw('svg', { viewBox: `-2 -2 ${w} ${h}`, width: Math.min(w, 320), role: 'img', 'aria-label': `${title}: ${text}`, class: 'small-graph' }, lines, boxes) : make('p', { className: 'dim' }, none));
}
