/**
 * Picking: outputs, inputs and barrier operations that a person chose -> the pattern that they enclose, live, with its
 * command; then the recipe that is derived from it, and both files.
 */
import { copyButton, fill, make } from './element.js';
import { ask, save, tail } from './model.js';

/** @typedef {import('./model.js').Model} Model */

export class Picking {
  /**
   * @param {HTMLElement} place
   * @param {Model} model
   * @param {(marks: Map<number, string>) => void} show
   */
  constructor(place, model, show) {
    this.model = model;
    this.show = show;
    /** @type {string[]} */
    this.seeds = [];
    /** @type {string[]} */
    this.barriers = [];
    this.function = model.patterns?.proposals.find((one) => !one.error)?.function ?? model.nodes[0]?.function ?? '';
    /** @type {Set<string>} */
    this.ops = new Set(model.patterns?.barrier_ops[this.function] ?? []);
    this.asked = 0;
    this.#build(place);
  }

  /** @param {HTMLElement} place */
  #build(place) {
    const { patterns } = this.model;
    if (!patterns) {
      fill(place, make('p', { className: 'message' }, 'Patterns are for TensorFlow models. An ONNX model is optimised by one command:'), command(`fusebert optimize ${this.model.path} -o optimized.onnx`));
      return;
    }
    this.as = 'seed';
    const role = (/** @type {string} */ as, /** @type {string} */ text) => make('label', { for: `pick-${as}` },
      make('input', { type: 'radio', name: 'pick', id: `pick-${as}`, checked: as === 'seed', on: { change: () => { this.as = as; } } }), ` ${text}`);
    this.lists = make('div', { className: 'stack tight' });
    this.checks = make('div', { className: 'row' });
    this.status = make('p', { className: 'message', role: 'status' }, 'Choose at least one output.');
    this.line = make('div', { className: 'command' });
    this.result = make('div', { className: 'stack tight' });
    this.derive = make('button', { type: 'button', className: 'primary', disabled: true, on: { click: () => this.#recipe() } }, 'Derive the recipe');
    this.file = make('button', { type: 'button', disabled: true, on: { click: () => this.#download('pattern.pb') } }, 'Download pattern.pb');
    const good = patterns.proposals.filter((one) => !one.error);
    fill(place, make('div', { className: 'stack' },
      make('p', { className: 'dim' }, 'Click nodes in the graph. The pattern is all that leads from the inputs to the outputs.'),
      make('div', { className: 'row' }, role('seed', 'outputs'), role('barrier', 'inputs'),
        good.map((one, i) => make('button', { type: 'button', on: { click: () => this.#take(one) } }, good.length > 1 ? `Suggest encoder ${i + 1}` : 'Suggest')),
        make('button', { type: 'button', className: 'quiet', on: { click: () => this.#take({ seeds: [], barriers: [], barrier_ops: [...this.ops], function: this.function }) } }, 'Clear')),
      this.lists,
      make('section', { className: 'stack tight' }, make('h2', {}, 'Operations that are inputs wherever they are'), this.checks),
      this.status, this.line, make('div', { className: 'row' }, this.derive, this.file), this.result));
    this.#list();
  }

  /** A node was clicked. @param {number} node @param {string} [as] */
  pick(node, as = this.as ?? 'seed') {
    const one = this.model.nodes[node];
    if (!one || !this.model.patterns) return;
    if (one.function !== this.function) {
      this.function = one.function;
      this.seeds = [];
      this.barriers = [];
      this.ops = new Set(this.model.patterns.barrier_ops[one.function] ?? []);
    }
    const lists = { seed: this.seeds, barrier: this.barriers };
    const own = lists[as === 'seed' ? 'seed' : 'barrier'];
    const other = lists[as === 'seed' ? 'barrier' : 'seed'];
    if (own.includes(one.name)) own.splice(own.indexOf(one.name), 1);
    else own.push(one.name);
    if (other.includes(one.name)) other.splice(other.indexOf(one.name), 1);
    this.#changed();
  }

  /** @param {import('./model.js').Picked} picked */
  #take(picked) {
    this.seeds = [...picked.seeds];
    this.barriers = [...picked.barriers];
    this.function = picked.function;
    this.ops = new Set(picked.barrier_ops);
    this.#changed();
  }

  get picked() {
    return { seeds: this.seeds, barriers: this.barriers, barrier_ops: [...this.ops], function: this.function };
  }

  #list() {
    const chips = (/** @type {string} */ title, /** @type {string[]} */ names, /** @type {string} */ as) => make('div', {}, make('h2', {}, title),
      names.length ? make('ul', { className: 'chips' }, names.map((name) => make('li', { className: `chip ${as}` }, make('span', { title: name }, tail(name)),
        make('button', { type: 'button', className: 'quiet', 'aria-label': `Remove ${name}`, on: { click: () => { names.splice(names.indexOf(name), 1); this.#changed(); } } }, '×'))))
        : make('p', { className: 'dim' }, 'none yet'));
    if (this.lists) fill(this.lists, chips('Outputs', this.seeds, 'seed'), chips('Inputs', this.barriers, 'barrier'));
    const ops = this.model.patterns?.barrier_ops[this.function] ?? [];
    if (this.checks) {
      fill(this.checks, ops.map((op) => make('label', { for: `op-${op}` }, make('input', {
        type: 'checkbox', id: `op-${op}`, checked: this.ops.has(op),
        on: { change: (/** @type {Event} */ event) => { if (/** @type {HTMLInputElement} */ (event.target).checked) this.ops.add(op); else this.ops.delete(op); this.#changed(); } },
      }), ` ${op}`)));
    }
  }

  async #changed() {
    this.#list();
    const asked = ++this.asked;
    if (this.result) fill(this.result);
    /** @type {any} */
    let told = { error: 'Choose at least one output.', inside: [], inputs: [], command: '' };
    if (this.seeds.length) {
      try {
        told = await (await ask(`/api/models/${this.model.number}/pattern`, this.picked)).json();
      } catch (error) {
        told.error = String(error);
      }
    }
    if (asked !== this.asked) return; // something else was chosen meanwhile
    const good = !told.error;
    if (this.status) {
      this.status.className = `message ${good ? 'good' : this.seeds.length ? 'bad' : ''}`;
      fill(this.status, good ? `${told.inside.length} nodes inside, ${told.inputs.length} inputs.` : told.error);
    }
    if (this.line) fill(this.line, told.command && command(told.command));
    for (const button of [this.derive, this.file]) if (button) button.disabled = !good;
    this.paint(told.inside);
  }

  /** @param {string[]} inside */
  paint(inside) {
    const names = { inside: new Set(inside), seed: new Set(this.seeds), barrier: new Set(this.barriers) };
    /** @type {Map<number, string>} */
    const marks = new Map();
    this.model.nodes.forEach((node, i) => {
      if (node.function !== this.function) return;
      const mark = names.seed.has(node.name) ? 'seed' : names.barrier.has(node.name) ? 'barrier' : names.inside.has(node.name) ? 'inside' : '';
      if (mark) marks.set(i, mark);
    });
    this.marks = marks;
    this.show(marks);
  }

  async #recipe() {
    const { result } = this;
    if (!result) return;
    fill(result, make('p', { className: 'dim' }, 'Deriving …'));
    try {
      const told = await (await ask(`/api/models/${this.model.number}/recipe`, this.picked)).json();
      const facts = Object.entries(told).filter(([name]) => !['node_def', 'notes'].includes(name));
      fill(result, make('h2', {}, 'The recipe'),
        make('dl', { className: 'facts' }, facts.flatMap(([name, value]) => [make('dt', {}, name.replaceAll('_', ' ')), make('dd', {}, String(value))])),
        told.notes.map((/** @type {string} */ note) => make('p', { className: 'message' }, note)),
        make('div', { className: 'row' }, make('button', { type: 'button', className: 'primary', on: { click: () => this.#download('recipe.pb') } }, 'Download recipe.pb'), copyButton(() => told.node_def, 'Copy the node')),
        make('pre', { id: 'node-def', tabIndex: 0, role: 'region', 'aria-label': 'Node definition' }, told.node_def),
        command(`fusebert replace-pattern ${this.model.path} -r recipe.pb -o modified`));
    } catch (error) {
      fill(result, make('p', { className: 'message bad', role: 'alert' }, error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {string} name */
  async #download(name) {
    save(await (await ask(`/api/models/${this.model.number}/${name}`, this.picked)).blob(), name);
  }
}

/** A command line that can be copied. @param {string} text */
function command(text) {
  return make('div', { className: 'copied' }, make('pre', { tabIndex: 0, role: 'region', 'aria-label': 'Command' }, text), copyButton(() => text));
}
