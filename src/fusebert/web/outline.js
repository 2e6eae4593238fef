/** Outline: the same blocks and nodes as a tree that keyboards and screen readers walk, and what a search finds. */
import { fill, make } from './element.js';

/** @typedef {import('./scene.js').Scene} Scene */
/** @typedef {import('./scene.js').Item} Item */

const MOST = 200; // children or finds that are listed at once

export class Outline {
  /**
   * @param {HTMLElement} place
   * @param {Scene} scene
   * @param {{ toggle: (group: number) => void, choose: (node: number) => void }} on
   */
  constructor(place, scene, on) {
    this.place = place;
    this.scene = scene;
    this.on = on;
    place.addEventListener('keydown', (event) => this.#walk(event));
  }

  /** Lists what is open. @param {number} [selected] */
  show(selected = -1) {
    this.selected = selected;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const key = focused && this.place.contains(focused) ? focused.dataset.key : undefined;
    fill(this.place, this.#list(-1, 'tree'));
    const items = this.#items();
    const again = items.find((item) => item.dataset.key === key) ?? null;
    for (const item of items) item.tabIndex = -1;
    (again ?? items.find((item) => item.getAttribute('aria-selected') === 'true') ?? items[0])?.setAttribute('tabindex', '0');
    again?.focus({ preventScroll: true });
  }

  /** Lists one block anew, which was opened or closed; all other lines stay. @param {number} group */
  turn(group) {
    const before = /** @type {HTMLElement | null} */ (this.place.querySelector(`[data-key="g${group}"]`));
    if (!before) return;
    const held = this.place.querySelector('[tabindex="0"]');
    const after = this.#item({ node: -1, group });
    const focused = before.contains(document.activeElement);
    before.replaceWith(after);
    if (!held || before.contains(held)) after.tabIndex = 0;
    if (focused) after.focus({ preventScroll: true });
  }

  /** Shows which node is selected. @param {number} node */
  select(node) {
    this.selected = node;
    const after = this.place.querySelector(`[data-key="n${node}"]`);
    if (!after) return;
    this.place.querySelector('[aria-selected="true"]')?.setAttribute('aria-selected', 'false');
    this.place.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1');
    after.setAttribute('aria-selected', 'true');
    after.setAttribute('tabindex', '0');
  }

  /** Lists what a word is in: names and operations. @param {string} word @returns {number[]} */
  search(word) {
    const wanted = word.toLowerCase();
    const found = [];
    for (const [i, one] of this.scene.all.entries()) {
      if (one.title.toLowerCase().includes(wanted) || one.name.toLowerCase().includes(wanted)) found.push(i);
    }
    const list = make('ul', { className: 'finds', 'aria-label': 'Found' }, found.slice(0, MOST).map((i) => make('li', {}, this.#find(i))));
    fill(this.place, make('p', { className: 'dim count', role: 'status' }, `${found.length.toLocaleString('en')} found`), list);
    return found;
  }

  /** @param {number} i */
  #find(i) {
    const { title, name } = this.scene.all[i];
    return make('button', { type: 'button', className: 'find', on: { click: () => this.on.choose(i) } }, make('b', {}, title), make('span', { className: 'dim' }, name));
  }

  /** @param {number} group @param {string} role */
  #list(group, role) {
    const { inside } = this.scene.container(group);
    const list = make('ul', { role, 'aria-label': role === 'tree' ? 'Blocks and nodes' : undefined });
    for (const item of inside.slice(0, MOST)) list.append(this.#item(item));
    if (inside.length > MOST) list.append(make('li', { role: 'none', className: 'dim' }, `and ${inside.length - MOST} more: search for them`));
    return list;
  }

  /** @param {Item} item */
  #item(item) {
    if (item.group < 0) {
      const { title, name, kind } = this.scene.all[item.node];
      return make('li', {
        role: 'treeitem', className: `leaf ${kind}`, tabIndex: -1, 'data-key': `n${item.node}`, 'aria-selected': String(item.node === this.selected),
        on: { click: (/** @type {Event} */ event) => { event.stopPropagation(); this.on.choose(item.node); } },
      }, make('b', {}, title), make('span', { className: 'dim' }, name.split('/').slice(-2).join('/')));
    }
    const group = this.scene.model.groups[item.group];
    const open = this.scene.open.has(item.group);
    return make('li', {
      role: 'treeitem', className: `block ${group.kind}`, tabIndex: -1, 'data-key': `g${item.group}`, 'aria-expanded': String(open),
      on: { click: (/** @type {Event} */ event) => { event.stopPropagation(); this.on.toggle(item.group); } },
    }, make('span', { className: 'line' }, make('span', { className: 'chevron', 'aria-hidden': 'true' }), group.label,
      make('span', { className: 'dim number' }, this.scene.counts[item.group].toLocaleString('en'))), open && this.#list(item.group, 'group'));
  }

  #items() {
    return /** @type {HTMLElement[]} */ ([...this.place.querySelectorAll('[role=treeitem]')]);
  }

  /** Arrow keys, as trees have them. @param {KeyboardEvent} event */
  #walk(event) {
    const items = this.#items();
    const now = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (now < 0) return;
    const item = items[now];
    const expanded = item.getAttribute('aria-expanded');
    const to = (/** @type {HTMLElement | null | undefined} */ next) => {
      if (!next) return;
      item.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    };
    if (event.key === 'ArrowDown') to(items[now + 1]);
    else if (event.key === 'ArrowUp') to(items[now - 1]);
    else if (event.key === 'Home') to(items[0]);
    else if (event.key === 'End') to(items[items.length - 1]);
    else if (event.key === 'Enter' || event.key === ' ' || (event.key === 'ArrowRight' && expanded === 'false')
      || (event.key === 'ArrowLeft' && expanded === 'true')) item.click();
    else if (event.key === 'ArrowRight' && expanded) to(items[now + 1]);
    else if (event.key === 'ArrowLeft') to(/** @type {HTMLElement | null} */ (item.parentElement?.closest('[role=treeitem]')));
    else return;
    event.preventDefault();
  }
}
