/**
 * Canvas: a scene drawn, moved and pointed at. Only what is in sight is drawn, and words only where they can be read, so
 * that thousands of nodes move as fluently as ten. The outline says the same to whom a drawing says nothing.
 */

/** @typedef {import('./scene.js').Box} Box */
/** @typedef {import('./scene.js').Scene} Scene */

const STRIPES = /** @type {Record<string, string>} */ ({
  product: '--accent', norm: '--violet', softmax: '--teal', activation: '--warn', lookup: '--good', fused: '--accent', edge: '--dim',
});
const MARKS = /** @type {Record<string, [string, string]>} */ ({ // ring and filling
  selected: ['--accent', ''], current: ['--accent', '--accent-soft'], refused: ['--bad', '--bad-soft'], miss: ['--bad', '--bad-soft'],
  seed: ['--good', '--good-soft'], barrier: ['--warn', '--warn-soft'], inside: ['--violet', '--violet-soft'],
  translated: ['', '--raised'], lifted: ['', '--teal-soft'], view: ['', '--bg'], recognised: ['', '--violet-soft'], matched: ['', '--good-soft'],
});
const STRONG = ['selected', 'current', 'refused', 'miss', 'seed', 'barrier', 'inside'];

export class Canvas {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Scene} scene
   * @param {(box: Box | null) => void} picked
   */
  constructor(canvas, scene, picked) {
    this.canvas = canvas;
    this.scene = scene;
    this.picked = picked;
    this.pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { alpha: false }));
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.extent = { w: 0, h: 0 };
    /** Marks of nodes, by number. @type {Map<number, string>} */
    this.marks = new Map();
    this.frames = 0;
    this.colours = /** @type {Record<string, string>} */ ({});
    this.waiting = false;
    this.words = new Map();
    new ResizeObserver(() => this.#fitCanvas()).observe(canvas);
    this.#listen();
    this.recolour();
  }

  /** Reads the colours of the page again. */
  recolour() {
    const style = getComputedStyle(document.documentElement);
    const names = ['--bg', '--panel', '--raised', '--line', '--strong', '--text', '--dim', '--accent', '--accent-soft', '--good', '--good-soft',
      '--warn', '--warn-soft', '--bad', '--bad-soft', '--violet', '--violet-soft', '--teal', '--teal-soft'];
    for (const name of names) this.colours[name] = style.getPropertyValue(name).trim();
    this.sans = style.getPropertyValue('--sans');
    this.ask();
  }

  /** Arranges the scene again; what is under `anchor` stays where it is. @param {Box | null} [anchor] */
  refresh(anchor = null) {
    const before = anchor && { x: anchor.x * this.scale - this.left, y: anchor.y * this.scale - this.top };
    this.extent = this.scene.arrange();
    this.#gather();
    const after = anchor && this.scene.boxes.find((box) => box.group === anchor.group && box.node === anchor.node);
    if (before && after) {
      this.left = after.x * this.scale - before.x;
      this.top = after.y * this.scale - before.y;
    }
    this.ask();
  }

  /** Marks nodes, and the closed blocks that hold them. @param {Map<number, string>} marks */
  mark(marks) {
    this.marks = marks;
    this.#gather();
    this.ask();
  }

  /** The mark of every box: a block has the strongest of those inside it. */
  #gather() {
    /** @type {Map<Box, string>} */
    this.shown = new Map();
    for (const [node, mark] of this.marks) {
      const box = this.scene.seen?.(node);
      if (!box) continue;
      const rank = STRONG.indexOf(mark);
      const now = this.shown.get(box);
      if (box.node >= 0 || (rank >= 0 && (!now || rank < STRONG.indexOf(now)))) this.shown.set(box, mark);
    }
  }

  /** Shows everything. */
  fit() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    this.scale = Math.min(1.1, Math.max(0.02, Math.min((w - 48) / this.extent.w, (h - 48) / this.extent.h)));
    if (this.extent.h * this.scale < h && this.scale < 0.5 && this.extent.w * 0.5 < w) this.scale = 0.5;
    this.left = (this.extent.w * this.scale - w) / 2;
    this.top = this.extent.h * this.scale < h ? (this.extent.h * this.scale - h) / 2 : -24;
    this.ask();
  }

  /** Brings a node into the middle. @param {number} node */
  centre(node) {
    const box = this.scene.seen?.(node);
    if (!box) return;
    if (this.scale < 0.55) this.scale = 0.8;
    this.left = (box.x + box.w / 2) * this.scale - this.canvas.clientWidth / 2;
    this.top = (box.y + Math.min(box.h, 200) / 2) * this.scale - this.canvas.clientHeight / 2;
    this.ask();
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] in the canvas */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(2.5, Math.max(0.02, this.scale * factor));
    this.left = (this.left + x) * (scale / this.scale) - x;
    this.top = (this.top + y) * (scale / this.scale) - y;
    this.scale = scale;
    this.ask();
  }

  /** @param {number} x @param {number} y */
  move(x, y) {
    this.left += x;
    this.top += y;
    this.ask();
  }

  /** Draws with the next frame. */
  ask() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  #fitCanvas() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.ratio = ratio;
    if (!this.seenOnce && this.canvas.clientWidth && this.extent.w) {
      this.seenOnce = true;
      this.fit();
    }
    this.#draw();
  }

  #draw() {
    const { pen, scale, colours, scene } = this;
    const ratio = this.ratio ?? 1;
    const [w, h] = [this.canvas.width / ratio, this.canvas.height / ratio];
    this.frames++;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours['--bg'];
    pen.fillRect(0, 0, w, h);
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, -this.left * ratio, -this.top * ratio);
    const sight = { x: this.left / scale, y: this.top / scale, w: w / scale, h: h / scale };
    for (const box of scene.boxes) if (box.open && meets(box, sight)) this.#block(box);
    this.#lines(sight);
    if (scale < 0.3) this.#specks(sight);
    else for (const box of scene.boxes) if (!box.open && box.group < 0 && meets(box, sight)) this.#node(box);
    for (const box of scene.boxes) if (!box.open && box.group >= 0 && meets(box, sight)) this.#block(box);
    this.#own();
  }

  /** The edges of what is selected, over everything. */
  #own() {
    const { pen } = this;
    for (const [node, mark] of this.marks) {
      if (mark !== 'selected') continue;
      pen.beginPath();
      for (const points of this.scene.linesOf(node)) trace(pen, points);
      pen.strokeStyle = this.colours['--accent'];
      pen.lineWidth = 2 / Math.min(1, this.scale);
      pen.stroke();
    }
  }

  /** Edges, in one stroke. @param {{ x: number, y: number, w: number, h: number }} sight */
  #lines(sight) {
    const { pen, scale } = this;
    const rough = scale < 0.2;
    pen.beginPath();
    for (const points of this.scene.lines) {
      const [x, y] = points[0];
      const [endX, endY] = points[points.length - 1];
      if (Math.max(y, endY) < sight.y || Math.min(y, endY) > sight.y + sight.h) continue;
      if (points.length === 2 && (Math.max(x, endX) < sight.x || Math.min(x, endX) > sight.x + sight.w)) continue;
      if (rough) { pen.moveTo(x, y); pen.lineTo(endX, endY); } else trace(pen, points);
    }
    pen.strokeStyle = this.colours['--strong'];
    pen.globalAlpha = rough ? 0.35 : 0.6;
    pen.lineWidth = Math.min(4, 1.1 / Math.min(1, scale));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** Nodes that are too small to be read: rectangles, one colour at a time. @param {{ x: number, y: number, w: number, h: number }} sight */
  #specks(sight) {
    const { pen, colours } = this;
    /** @type {Map<string, Box[]>} */
    const lists = new Map();
    for (const box of this.scene.boxes) {
      if (box.open || box.group >= 0 || !meets(box, sight)) continue;
      const mark = this.shown?.get(box);
      const colour = mark ? MARKS[mark][0] || MARKS[mark][1] : STRIPES[box.kind] ?? '--strong';
      const list = lists.get(colour);
      if (list) list.push(box);
      else lists.set(colour, [box]);
    }
    for (const [colour, boxes] of lists) {
      pen.fillStyle = colours[colour];
      pen.globalAlpha = 0.75;
      for (const box of boxes) pen.fillRect(box.x, box.y, box.w, box.h);
    }
    pen.globalAlpha = 1;
  }

  /** @param {Box} box */
  #node(box) {
    const { pen, colours } = this;
    const [ring, filling] = MARKS[this.shown?.get(box) ?? ''] ?? ['', ''];
    pen.beginPath();
    pen.roundRect(box.x, box.y, box.w, box.h, box.kind === 'edge' ? box.h / 2 : 7);
    pen.fillStyle = colours[filling || '--panel'];
    pen.fill();
    pen.lineWidth = ring ? 2.5 : 1;
    pen.strokeStyle = colours[ring || '--line'];
    pen.stroke();
    if (box.kind !== 'edge') {
      pen.beginPath();
      pen.roundRect(box.x + 6, box.y + 8, 3.5, box.h - 16, 2);
      pen.fillStyle = colours[STRIPES[box.kind] ?? '--strong'];
      pen.fill();
    }
    const middle = box.kind === 'edge';
    pen.textAlign = middle ? 'center' : 'left';
    const x = middle ? box.x + box.w / 2 : box.x + 17;
    this.#text(box.title, x, box.y + 17, box.w - 24, '600 12px', '--text', middle);
    this.#text(box.more, x, box.y + 31, box.w - 24, '10.5px', '--dim', true);
  }

  /** @param {Box} box */
  #block(box) {
    const { pen, colours } = this;
    const mark = this.shown?.get(box) ?? '';
    const accent = box.kind === 'encoder';
    pen.beginPath();
    pen.roundRect(box.x, box.y, box.w, box.h, 12);
    pen.fillStyle = colours[MARKS[mark]?.[1] || (accent ? '--accent-soft' : box.open ? (box.depth % 2 ? '--raised' : '--panel') : '--panel')];
    pen.fill();
    pen.lineWidth = MARKS[mark]?.[0] ? 3 : accent ? 2 : 1.2;
    pen.strokeStyle = colours[MARKS[mark]?.[0] || (accent ? '--accent' : box.kind === 'scope' ? '--line' : '--strong')];
    pen.stroke();
    if (box.w * this.scale < 44) return;
    const size = Math.min(Math.max(14, 11 / this.scale), box.open ? 60 : 22);
    const y = box.open ? box.y + 24 : box.y + box.h / 2;
    pen.textAlign = 'left';
    pen.fillStyle = colours[accent ? '--accent' : '--dim'];
    const c = box.x + 18;
    const half = box.open ? 4 : 5;
    pen.beginPath(); // a chevron: open or closed
    if (box.open) { pen.moveTo(c - half, y - 7); pen.lineTo(c, y - 2); pen.lineTo(c + half, y - 7); }
    else { pen.moveTo(c - 2, y - half); pen.lineTo(c + 3, y); pen.lineTo(c - 2, y + half); }
    pen.lineWidth = 2;
    pen.strokeStyle = pen.fillStyle;
    pen.stroke();
    if (box.open) {
      const long = `${box.title} · ${box.more}`;
      this.#text(long.length * 8 < box.w - 44 ? long : box.title, box.x + 34, y, box.w - 44, `600 ${Math.min(size, 15)}px`, accent ? '--accent' : '--text');
      return;
    }
    this.#text(box.title, box.x + 34, y - 4, box.w - 48, '600 14px', accent ? '--accent' : '--text');
    this.#text(box.more, box.x + 34, y + 14, box.w - 48, '12px', '--dim');
  }

  /** A text that fits; `end` keeps the end of a longer one, which tells most of a name.
   * @param {string} text @param {number} x @param {number} y @param {number} width @param {string} font @param {string} colour @param {boolean} [end] */
  #text(text, x, y, width, font, colour, end = false) {
    const { pen } = this;
    pen.font = `${font} ${this.sans}`;
    const key = `${font}|${Math.round(width)}|${text}`;
    let shown = this.words.get(key);
    if (shown === undefined) {
      shown = text;
      for (let kept = text.length; kept > 3 && pen.measureText(shown).width > width;) {
        kept = Math.floor(kept * 0.94);
        shown = end ? `…${text.slice(-kept)}` : `${text.slice(0, kept)}…`;
      }
      this.words.set(key, shown);
    }
    pen.fillStyle = this.colours[colour];
    pen.fillText(shown, x, y);
  }

  /** The innermost box at a place of the canvas. @param {number} x @param {number} y @returns {Box | null} */
  at(x, y) {
    const [px, py] = [(x + this.left) / this.scale, (y + this.top) / this.scale];
    let found = null;
    for (const box of this.scene.boxes) {
      if (px >= box.x && px <= box.x + box.w && py >= box.y && py <= box.y + box.h && (!found || box.depth >= found.depth)) found = box;
    }
    return found && found.open && py > found.y + 40 ? null : found;
  }

  #listen() {
    const { canvas } = this;
    /** @type {Map<number, { x: number, y: number }>} */
    const fingers = new Map();
    let moved = 0;
    canvas.addEventListener('pointerdown', (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      moved = 0;
    });
    canvas.addEventListener('pointermove', (event) => {
      const finger = fingers.get(event.pointerId);
      if (!finger) {
        canvas.style.cursor = this.at(event.offsetX, event.offsetY) ? 'pointer' : 'grab';
        return;
      }
      const [dx, dy] = [event.offsetX - finger.x, event.offsetY - finger.y];
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) {
        const before = Math.hypot(finger.x - other.x, finger.y - other.y);
        const after = Math.hypot(event.offsetX - other.x, event.offsetY - other.y);
        if (before > 0) this.zoom(after / before, (event.offsetX + other.x) / 2, (event.offsetY + other.y) / 2);
      } else this.move(-dx, -dy);
      moved += Math.abs(dx) + Math.abs(dy);
      Object.assign(finger, { x: event.offsetX, y: event.offsetY });
    });
    const up = (/** @type {PointerEvent} */ event) => {
      if (fingers.delete(event.pointerId) && event.type === 'pointerup' && moved < 6) this.picked(this.at(event.offsetX, event.offsetY));
    };
    canvas.addEventListener('pointerup', up);
    canvas.addEventListener('pointercancel', up);
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      if (event.shiftKey) this.move(event.deltaY, 0);
      else this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener('keydown', (event) => {
      const steps = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-60, 0], ArrowRight: [60, 0], ArrowUp: [0, -60], ArrowDown: [0, 60] });
      if (steps[event.key]) this.move(...steps[event.key]);
      else if (event.key === '+' || event.key === '=') this.zoom(1.25);
      else if (event.key === '-') this.zoom(0.8);
      else if (event.key === '0') this.fit();
      else return;
      event.preventDefault();
    });
  }
}

/** @param {{ x: number, y: number, w: number, h: number }} a @param {{ x: number, y: number, w: number, h: number }} b */
function meets(a, b) {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}

/** Adds an edge to what is stroked. @param {CanvasRenderingContext2D} pen @param {[number, number][]} points */
function trace(pen, points) {
  pen.moveTo(...points[0]);
  for (let i = 1; i < points.length; i++) {
    const [ax, ay] = points[i - 1];
    const [bx, by] = points[i];
    if (ax === bx) pen.lineTo(bx, by);
    else pen.bezierCurveTo(ax, (ay + by) / 2, bx, (ay + by) / 2, bx, by);
  }
}
