/** The page of `fusebert explore`: one pane for each model; outline, inspector, player and picking are of the active one. */
import { Canvas } from './canvas.js';
import { fill, make, part, tabs, theme } from './element.js';
import { showModel, showNode } from './inspector.js';
import { ask, fetchModel } from './model.js';
import { Outline } from './outline.js';
import { Picking } from './picking.js';
import { Player } from './player.js';
import { Scene } from './scene.js';

/** @typedef {import('./model.js').Model} Model */

class Pane {
  /** @param {Model} model @param {HTMLElement} place @param {(pane: Pane) => void} activate */
  constructor(model, place, activate) {
    this.model = model;
    this.activate = activate;
    this.selected = -1;
    /** @type {number[]} */
    this.opened = [];
    this.scene = new Scene(model);
    const canvas = make('canvas', { tabIndex: 0, role: 'img', 'aria-label': `Graph of ${model.path}; arrow keys move, + and - zoom, 0 shows all; the outline lists the same` });
    const zoom = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ click) => make('button', { type: 'button', 'aria-label': label, on: { click } }, text);
    this.element = make('section', { className: 'pane', 'aria-label': model.path }, canvas,
      make('div', { className: 'zoom' }, zoom('+', 'Zoom in', () => this.canvas.zoom(1.25)), zoom('−', 'Zoom out', () => this.canvas.zoom(0.8)), zoom('Fit', 'Fit all in', () => this.canvas.fit())));
    place.append(this.element);
    this.canvas = new Canvas(canvas, this.scene, (box) => {
      this.activate(this);
      if (!box) return;
      if (box.group >= 0) this.toggle(box.group);
      else this.choose(box.node, true);
    });
    for (const [g, group] of model.groups.entries()) if (group.kind === 'encoder') this.scene.toggle(g, true);
    this.canvas.refresh();
    this.list = make('div', { className: 'list' });
    this.inspector = make('div', {});
    this.match = make('div', {});
    this.pattern = make('div', {});
    this.outline = new Outline(this.list, this.scene, { toggle: (g) => this.toggle(g), choose: (i) => this.choose(i) });
    this.player = new Player(this.match, model, (marks, centre, follow) => this.paint(marks, centre, follow));
    this.picking = new Picking(this.pattern, model, (marks) => this.paint(marks));
    showModel(this.inspector, model);
    this.outline.show();
  }

  /** @param {number} group */
  toggle(group) {
    const begun = performance.now();
    const box = this.scene.boxes.find((one) => one.group === group) ?? null;
    this.scene.toggle(group);
    this.canvas.refresh(box);
    this.outline.turn(group);
    performance.measure('toggle', { start: begun, end: performance.now() });
  }

  /** A node was chosen, in the graph if `seen`. @param {number} node @param {boolean} [seen] */
  choose(node, seen = false) {
    this.selected = node;
    if (tab === 'tab-pattern' && seen) {
      this.picking.pick(node);
      return;
    }
    const opened = this.scene.reveal(node);
    if (opened.length) this.canvas.refresh();
    this.canvas.mark(new Map([...(tab === 'tab-pattern' ? this.picking.marks ?? [] : []), [node, 'selected']]));
    if (!seen) this.canvas.centre(node);
    const pick = this.model.patterns && this.model.nodes[node] ? (/** @type {number} */ i, /** @type {string} */ as) => { showTab('tab-pattern'); this.picking.pick(i, as); } : null;
    showNode(this.inspector, this.scene, node, { choose: (i) => this.choose(i), pick });
    if (tab !== 'tab-pattern') showTab('tab-node');
    if (opened.length) this.outline.turn(opened[0]);
    this.outline.select(node);
  }

  /** @param {Map<number, string>} marks @param {number} [centre] @param {boolean} [follow] */
  paint(marks, centre = -1, follow = false) {
    if (follow && centre >= 0) {
      const needed = new Set(this.scene.around(this.scene.all[centre].group));
      const stale = this.opened.filter((g) => !needed.has(g));
      for (const g of stale.reverse()) this.scene.toggle(g, false);
      const opened = this.scene.reveal(centre);
      this.opened = [...this.opened.filter((g) => needed.has(g)), ...opened];
      if (stale.length || opened.length) {
        this.canvas.refresh();
        this.outline.show(this.selected);
      }
    }
    this.canvas.mark(marks);
    if (follow && centre >= 0) this.canvas.centre(centre);
  }
}

let tab = 'tab-node';
/** @type {Pane[]} */
const panes = [];
/** @type {Pane | undefined} */
let active;
const showTab = tabs(part('tabs'), (name) => { tab = name; });

/** @param {Pane} pane */
function activate(pane) {
  if (active === pane) return;
  active = pane;
  for (const one of panes) one.element.classList.toggle('active', panes.length > 1 && one === pane);
  fill(part('outline'), pane.list);
  fill(part('tab-node'), pane.inspector);
  fill(part('tab-match'), pane.match);
  fill(part('tab-pattern'), pane.pattern);
}

/** @param {Event} event */
function search(event) {
  const word = /** @type {HTMLInputElement} */ (event.target).value.trim();
  if (!active) return;
  if (word) active.outline.search(word);
  else active.outline.show(active.selected);
}

async function begin() {
  theme(() => { for (const pane of panes) pane.canvas.recolour(); });
  const field = /** @type {HTMLInputElement} */ (part('search'));
  field.addEventListener('input', search);
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') /** @type {HTMLElement | null} */ (document.querySelector('#outline .find'))?.click();
    if (event.key === 'Escape') { field.value = ''; search(event); }
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== '/' || event.target instanceof HTMLInputElement) return;
    field.focus();
    event.preventDefault();
  });
  showTab('tab-node');
  try {
    const models = await (await ask('/api/models')).json();
    const read = await Promise.all([...models.keys()].map(fetchModel));
    for (const model of read) panes.push(new Pane(model, part('panes'), activate)); // at once, so that each sees its own width
    document.body.dataset.models = String(panes.length);
    fill(part('title'), models.map((/** @type {{ path: string }} */ one) => one.path.split('/').pop()).join(' and '));
    activate(panes[0]);
    part('status').hidden = true;
    Object.assign(window, { panes }); // for measurements
  } catch (error) {
    fill(part('status'), make('p', { className: 'message bad', role: 'alert' }, error instanceof Error ? error.message : String(error)));
  }
}

begin();
