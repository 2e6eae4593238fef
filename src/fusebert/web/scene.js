/**
 * Scene: a model's nodes in blocks of which some are open -> boxes and edges with their places. Only what is open is laid
 * out, and what did not change is not laid out again.
 */
import { layout } from './layout.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {{ node: number, group: number, x: number, y: number, w: number, h: number, open: boolean, depth: number, title: string, more: string, kind: string }} Box */
/** @typedef {[number, number][]} Line */
/** @typedef {{ inside: Item[], pairs: Map<string, { a: number, b: number }> }} Container */
/** @typedef {{ node: number, group: number }} Item */

const NODE = { w: 150, h: 40 };
const CLOSED = { w: 210, h: 58 };
const PAD = 20;
const HEAD = 36;

export class Scene {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Set<number>} */
    this.open = new Set();
    /** Nodes, then the graph's inputs, then its outputs. @type {{ title: string, name: string, kind: string, group: number, reads: string[], makes: string[] }[]} */
    this.all = [
      ...model.nodes.map((node) => ({ title: node.op, name: node.name, kind: family(node.op), group: node.group, reads: node.inputs, makes: node.outputs })),
      ...model.inputs.map((name) => ({ title: name, name: 'input', kind: 'edge', group: -1, reads: [], makes: [name] })),
      ...model.outputs.map((name) => ({ title: name, name: 'output', kind: 'edge', group: -1, reads: [name], makes: [] })),
    ];
    this.counts = model.groups.map(() => 0);
    /** @type {Map<number, Container>} */
    this.containers = new Map();
    /** @type {Map<string, number>} */
    this.maker = new Map();
    /** @type {number[][]} */
    this.readers = this.all.map(() => []);
    /** The blocks around a node or block, from the outside in. @type {(group: number) => number[]} */
    this.around = (group) => {
      const way = [];
      for (let g = group; g >= 0; g = model.groups[g].parent) way.unshift(g);
      return way;
    };
    for (const node of model.nodes) for (const g of this.around(node.group)) this.counts[g]++;
    this.words = model.groups.map((group, g) => ({ title: group.label, more: this.#contents(g), kind: group.kind }));
    this.#build();
    /** @type {Map<number, import('./layout.js').Layout>} */
    this.known = new Map();
    /** @type {Box[]} */
    this.boxes = [];
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Map<string, Line>} */
    this.ways = new Map();
  }

  /** What is directly in each block, and which of that reads which. */
  #build() {
    const { model, all } = this;
    for (const g of [-1, ...model.groups.keys()]) this.containers.set(g, { inside: [], pairs: new Map() });
    /** @type {number[]} */
    this.placeOfGroup = [];
    /** @type {number[]} */
    this.placeOfNode = [];
    const first = model.groups.map(() => Infinity);
    all.forEach((one, i) => { for (const g of this.around(one.group)) first[g] = Math.min(first[g], i); });
    /** @type {[number, Item, number][]} */
    const items = [
      ...all.map((one, i) => /** @type {[number, Item, number]} */ ([one.name === 'input' ? -1 : i, { node: i, group: -1 }, one.group])),
      ...model.groups.map((one, g) => /** @type {[number, Item, number]} */ ([first[g], { node: -1, group: g }, one.parent])),
    ];
    items.sort((a, b) => a[0] - b[0]);
    for (const [, item, parent] of items) {
      if (item.group >= 0 && !this.counts[item.group]) continue;
      const list = this.container(parent).inside;
      if (item.group >= 0) this.placeOfGroup[item.group] = list.length;
      else this.placeOfNode[item.node] = list.length;
      list.push(item);
    }
    const { maker } = this;
    all.forEach((one, i) => { for (const tensor of one.makes) maker.set(tensor, i); });
    all.forEach((one, to) => {
      for (const from of new Set(one.reads.map((tensor) => maker.get(tensor)))) {
        if (from === undefined || from === to) continue;
        this.readers[from].push(to);
        this.#join(from, to);
      }
    });
  }

  /** @param {number} group @returns {Container} */
  container(group) {
    const found = this.containers.get(group);
    if (!found) throw new Error(`there is no block ${group}`);
    return found;
  }

  /** Notes an edge where both ends are in one block. @param {number} from @param {number} to */
  #join(from, to) {
    const left = this.around(this.all[from].group);
    const right = this.around(this.all[to].group);
    let k = 0;
    while (k < left.length && k < right.length && left[k] === right[k]) k++;
    const a = k < left.length ? this.placeOfGroup[left[k]] : this.placeOfNode[from];
    const b = k < right.length ? this.placeOfGroup[right[k]] : this.placeOfNode[to];
    const { pairs } = this.container(k ? left[k - 1] : -1);
    const key = `${a},${b}`;
    if (!pairs.has(key)) pairs.set(key, { a, b });
  }

  /** Opens or closes a block. @param {number} group @param {boolean} [open] */
  toggle(group, open = !this.open.has(group)) {
    if (open) this.open.add(group);
    else this.open.delete(group);
    for (const g of [-1, ...this.around(group)]) this.known.delete(g);
  }

  /** Opens all that is around a node; tells which blocks that were. @param {number} node @returns {number[]} */
  reveal(node) {
    const opened = this.around(this.all[node].group).filter((g) => !this.open.has(g));
    for (const g of opened) this.toggle(g, true);
    return opened;
  }

  /** Boxes and edges of everything, from 0, 0 on. */
  arrange() {
    this.boxes = [];
    this.lines = [];
    /** Of edges whose ends are nodes of one block. @type {Map<string, Line>} */
    this.ways = new Map();
    /** @type {Map<number, Box>} */
    const ofNode = new Map();
    /** @type {Map<number, Box>} */
    const ofGroup = new Map();
    const whole = this.#layoutOf(-1);
    this.#place(-1, 0, 0, 0, ofNode, ofGroup);
    const seen = (/** @type {number} */ node) => {
      for (const g of this.around(this.all[node].group)) if (!this.open.has(g)) return ofGroup.get(g);
      return ofNode.get(node);
    };
    this.seen = seen;
    for (const g of [-1, ...this.open]) this.#route(g, ofNode, ofGroup);
    return { w: whole.w, h: whole.h };
  }

  /** @param {Item} item */
  #size(item) {
    if (item.group < 0) return NODE;
    if (!this.open.has(item.group)) return CLOSED;
    const inner = this.#layoutOf(item.group);
    return { w: Math.max(CLOSED.w, inner.w + 2 * PAD), h: inner.h + HEAD + 2 * PAD };
  }

  /** @param {number} group */
  #layoutOf(group) {
    let found = this.known.get(group);
    if (!found) {
      const { inside, pairs } = this.container(group);
      found = layout(inside.map((item) => this.#size(item)), [...pairs.values()].map(({ a, b }) => [a, b]));
      this.known.set(group, found);
    }
    return found;
  }

  /** @param {number} group @param {number} x @param {number} y @param {number} depth
   * @param {Map<number, Box>} ofNode @param {Map<number, Box>} ofGroup */
  #place(group, x, y, depth, ofNode, ofGroup) {
    const laid = this.#layoutOf(group);
    this.container(group).inside.forEach((item, i) => {
      const { w, h } = this.#size(item);
      const open = item.group >= 0 && this.open.has(item.group);
      const box = { ...item, x: x + laid.x[i], y: y + laid.y[i], w, h, open, depth, ...this.#words(item) };
      this.boxes.push(box);
      if (item.group < 0) { ofNode.set(item.node, box); return; }
      ofGroup.set(item.group, box);
      if (open) {
        const inner = this.#layoutOf(item.group);
        this.#place(item.group, box.x + (w - inner.w) / 2, box.y + HEAD + PAD, depth + 1, ofNode, ofGroup);
      }
    });
  }

  /** What a block holds, in words. @param {number} group */
  #contents(group) {
    const layers = this.model.groups.filter((g) => g.parent === group && g.kind === 'layer').length;
    const count = `${this.counts[group].toLocaleString('en')} node${this.counts[group] === 1 ? '' : 's'}`;
    return layers ? `${layers} layers, ${count}` : count;
  }

  /** @param {Item} item */
  #words(item) {
    if (item.group >= 0) return this.words[item.group];
    const one = this.all[item.node];
    return { title: one.title, more: one.name, kind: one.kind };
  }

  /** The ways of edges inside a block. One that goes on into an open block ends at its border.
   * @param {number} group @param {Map<number, Box>} ofNode @param {Map<number, Box>} ofGroup */
  #route(group, ofNode, ofGroup) {
    const box = ofGroup.get(group);
    if (group >= 0 && !box) return; // inside a block that is closed
    const laid = this.#layoutOf(group);
    const [x, y] = box ? [box.x + (box.w - laid.w) / 2, box.y + HEAD + PAD] : [0, 0];
    const { inside, pairs } = this.container(group);
    for (const [key, { a, b }] of pairs) {
      const way = (laid.ways.get(key) ?? []).map(([px, py]) => /** @type {[number, number]} */ ([px + x, py + y]));
      const [from, to] = [a, b].map((i) => (inside[i].group < 0 ? ofNode.get(inside[i].node) : ofGroup.get(inside[i].group)));
      if (!from || !to) continue;
      /** @type {Line} */
      const line = [[from.x + from.w / 2, from.y + from.h], ...way, [to.x + to.w / 2, to.y]];
      this.lines.push(line);
      if (from.node >= 0 && to.node >= 0) this.ways.set(`${from.node},${to.node}`, line);
    }
  }

  /** The ways between a node and all that it reads and that reads it, as far as they are seen. @param {number} node */
  linesOf(node) {
    const ends = [...this.all[node].reads.map((tensor) => [this.maker.get(tensor), node]), ...this.readers[node].map((to) => [node, to])];
    /** @type {Line[]} */
    const found = [];
    for (const [a, b] of ends) {
      const from = a === undefined ? undefined : this.seen?.(a);
      const to = b === undefined ? undefined : this.seen?.(b);
      if (from && to && from !== to) found.push(this.ways.get(`${a},${b}`) ?? [[from.x + from.w / 2, from.y + from.h], [to.x + to.w / 2, to.y]]);
    }
    return found;
  }
}

const FAMILIES = /** @type {[RegExp, string][]} */ ([
  [/matmul|gemm|einsum|linear|scores|context|conv|tensordot/i, 'product'],
  [/norm|mean|variance|rsqrt|sqrt|squareddifference/i, 'norm'],
  [/softmax/i, 'softmax'],
  [/gelu|erf|tanh|relu|sigmoid|activation/i, 'activation'],
  [/gather|embed|onehot|one_hot/i, 'lookup'],
  [/reshape|transpose|shape|slice|squeeze|expand|identity|cast|concat|pack|split|heads|tile|fill|const|where|select|arrange/i, 'layout'],
  [/encoder|^bert/i, 'fused'],
]);

/** What sort of work an operation is. @param {string} op */
export function family(op) {
  return FAMILIES.find(([word]) => word.test(op))?.[1] ?? 'arithmetic';
}
