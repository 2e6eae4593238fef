/**
 * Layout: boxes and edges between them -> where each box stands, in ranks from top to bottom, and the way of each edge.
 * Pure: it knows no page. Edges that span several ranks get a lane of their own between the boxes.
 */

/** @typedef {{ w: number, h: number }} Size */
/** @typedef {{ x: number[], y: number[], w: number, h: number, ways: Map<string, [number, number][]> }} Layout */

const GAP = 22; // between boxes of a rank
const DROP = 34; // between ranks
const LANE = 8; // what an edge that passes takes
const LONGEST = 30; // ranks that an edge may span and still have a lane
const SWEEPS = 6;

/**
 * @param {Size[]} boxes
 * @param {[number, number][]} edges
 * @returns {Layout}
 */
export function layout(boxes, edges) {
  const rank = ranks(boxes.length, edges);
  const width = boxes.map((box) => box.w);
  /** @type {number[][]} */
  const below = boxes.map(() => []);
  /** @type {number[][]} */
  const above = boxes.map(() => []);
  /** @type {Map<string, number[]>} */
  const lanes = new Map();
  const join = (/** @type {number} */ a, /** @type {number} */ b) => { below[a].push(b); above[b].push(a); };
  for (const [a, b] of edges) {
    const span = rank[b] - rank[a];
    if (span < 1) continue;
    let last = a;
    /** @type {number[]} */
    const lane = [];
    for (let r = rank[a] + 1; r < rank[b] && span <= LONGEST; r++) {
      const stop = width.length;
      width.push(LANE); rank.push(r); below.push([]); above.push([]);
      join(last, stop);
      lane.push(stop);
      last = stop;
    }
    if (span <= LONGEST) join(last, b);
    lanes.set(`${a},${b}`, lane);
  }
  const rows = order(rank, above, below);
  const x = place(rows, width, above, below);
  return finish(boxes, rank, rows, x, lanes);
}

/** The rank of each box: one below all that it reads; what reads nothing stands right above its first reader.
 * @param {number} count @param {[number, number][]} edges */
function ranks(count, edges) {
  /** @type {number[][]} */
  const next = Array.from({ length: count }, () => []);
  const waits = new Array(count).fill(0);
  for (const [a, b] of edges) { next[a].push(b); waits[b]++; }
  const reads = waits.slice();
  const rank = new Array(count).fill(0);
  const done = new Array(count).fill(false);
  const ready = [...waits.keys()].filter((i) => !waits[i]).reverse();
  let first = 0;
  for (let left = count; left > 0; left--) {
    let i = ready.pop();
    if (i === undefined) { // blocks may read each other in a circle: go on with the first one
      while (done[first]) first++;
      i = first;
    }
    done[i] = true;
    for (const j of next[i]) {
      if (done[j]) continue;
      rank[j] = Math.max(rank[j], rank[i] + 1);
      if (--waits[j] === 0) ready.push(j);
    }
  }
  for (let i = 0; i < count; i++) {
    if (!reads[i] && next[i].length) rank[i] = Math.max(0, Math.min(...next[i].map((j) => rank[j])) - 1);
  }
  return rank;
}

/** The boxes of each rank from left to right, so that few edges cross.
 * @param {number[]} rank @param {number[][]} above @param {number[][]} below */
function order(rank, above, below) {
  /** @type {number[][]} */
  const rows = [];
  rank.forEach((r, i) => { (rows[r] ??= []).push(i); });
  for (let r = 0; r < rows.length; r++) rows[r] ??= [];
  const place = new Array(rank.length).fill(0);
  const note = (/** @type {number[]} */ row) => row.forEach((i, at) => { place[i] = at; });
  rows.forEach(note);
  const middle = new Array(rank.length).fill(0);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const beside = down ? above : below;
    for (let k = 1; k < rows.length; k++) {
      const row = rows[down ? k : rows.length - 1 - k];
      for (const i of row) {
        let sum = 0;
        for (const j of beside[i]) sum += place[j];
        middle[i] = beside[i].length ? sum / beside[i].length : place[i];
      }
      row.sort((a, b) => middle[a] - middle[b]);
      note(row);
    }
  }
  return rows;
}

/** The middle of each box: near those that it is joined with, without overlap.
 * @param {number[][]} rows @param {number[]} width @param {number[][]} above @param {number[][]} below */
function place(rows, width, above, below) {
  const x = new Array(width.length).fill(0);
  for (const row of rows) {
    let at = 0;
    for (const i of row) { x[i] = at + width[i] / 2; at += width[i] + GAP; }
    for (const i of row) x[i] -= at / 2;
  }
  for (let sweep = 0; sweep < SWEEPS * 2; sweep++) {
    const down = sweep % 2 === 0;
    const beside = down ? above : below;
    for (let k = 0; k < rows.length; k++) {
      const row = rows[down ? k : rows.length - 1 - k];
      const wish = row.map((i) => {
        let sum = 0;
        for (const j of beside[i]) sum += x[j];
        return beside[i].length ? sum / beside[i].length : x[i];
      });
      let edge = -Infinity;
      let off = 0;
      row.forEach((i, at) => {
        x[i] = Math.max(wish[at], edge + width[i] / 2);
        edge = x[i] + width[i] / 2 + GAP;
        off += x[i] - wish[at];
      });
      for (const i of row) x[i] -= off / row.length;
    }
  }
  return x;
}

/** Everything moved so that it begins at 0, 0; the ways of edges through their lanes.
 * @param {Size[]} boxes @param {number[]} rank @param {number[][]} rows @param {number[]} middle
 * @param {Map<string, number[]>} lanes @returns {Layout} */
function finish(boxes, rank, rows, middle, lanes) {
  /** @type {number[]} */
  const top = [];
  let h = 0;
  for (const row of rows) {
    top.push(h);
    h += Math.max(0, ...row.filter((i) => i < boxes.length).map((i) => boxes[i].h)) + DROP;
  }
  const tall = rows.map((_, r) => (r + 1 < top.length ? top[r + 1] : h) - top[r] - DROP);
  let low = Infinity;
  let high = -Infinity;
  middle.forEach((x, i) => {
    const half = (i < boxes.length ? boxes[i].w : LANE) / 2;
    low = Math.min(low, x - half);
    high = Math.max(high, x + half);
  });
  if (!boxes.length) low = high = 0;
  const ways = new Map();
  for (const [key, lane] of lanes) {
    ways.set(key, lane.flatMap((i) => [[middle[i] - low, top[rank[i]]], [middle[i] - low, top[rank[i]] + tall[rank[i]]]]));
  }
  return {
    x: boxes.map((box, i) => middle[i] - box.w / 2 - low),
    y: boxes.map((box, i) => top[rank[i]] + (tall[rank[i]] - box.h) / 2),
    w: high - low, h: Math.max(0, h - DROP), ways,
  };
}
