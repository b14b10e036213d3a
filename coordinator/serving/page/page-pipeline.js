// coordinator/serving/page/page-pipeline.js - draws each stage as a card with a bar that shows how the stage spends its
// time, and each step under way as a dot that moves from stage to stage and back. Real steps are too fast to see, so the
// dots move more slowly; their number is the real one.
// SPDX-License-Identifier: Apache-2.0
const PARTS = {
  compute: ["compute"], sampling: ["sampling"], wire: ["wire"], wait: ["wait-in", "wait-out"], idle: ["no-work"],
};
const ROUND_S = 4, MOST_DOTS = 32, WINDOW_SAMPLES = 3, MANY = 12;
const SVG = "http://www.w3.org/2000/svg";

function element(tag, name, parent, text) {
  const e = document.createElement(tag);
  if (name)
    e.className = name;
  if (text !== undefined)
    e.textContent = text;
  parent?.append(e);
  return e;
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; n >= 1024 && u + 1 < units.length; u++)
    n /= 1024;
  return `${n >= 100 || u === 0 ? Math.round(n) : n.toFixed(1)} ${units[u]}`;
}

export function duration(s) {
  const [value, unit] = s >= 1 ? [s, "s"] : s >= 1e-3 ? [s * 1e3, "ms"] : [s * 1e6, "µs"];
  return `${value >= 100 ? Math.round(value) : parseFloat(value.toPrecision(value >= 10 ? 3 : 2))} ${unit}`;
}

// A factor as text, with one significant digit.
function rounded(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return (Math.round(x / unit) * unit).toLocaleString("en");
}

// The shares of the parts of a stage's time between two reports; null if the stage has not reported since.
function sharesBetween(before, after) {
  const sum = (s) => Object.values(s.seconds).reduce((a, b) => a + b, 0);
  const all = sum(after) - sum(before);
  if (!(all > 0.01))
    return null;
  return Object.fromEntries(Object.entries(PARTS).map(([part, phases]) =>
    [part, Math.max(0, phases.reduce((t, p) => t + after.seconds[p] - before.seconds[p], 0) / all)]));
}

class Card {
  constructor(list, index) {
    this.list = list;
    this.item = element("li", "stage", list);
    this.node = element("span", "node", this.item);
    this.where = element("h3", "", this.item);
    this.layers = element("p", "layers", this.item);
    this.use = element("div", "use", this.item);
    this.use.setAttribute("role", "img");
    this.parts = Object.fromEntries(Object.keys(PARTS).map((part) => [part, element("i", part, this.use)]));
    const facts = element("dl", "", this.item);
    this.facts = Object.fromEntries(["busy", "memory", "step"].map((name) => {
      element("dt", "", facts, name);
      return [name, element("dd", "", facts, "–")];
    }));
    this.index = index;
  }

  describe(stage) {
    const host = stage.host ? `${stage.host}, rank ${stage.rank}` : "";
    const memory = stage.bytes.weights + stage.bytes.kv + stage.bytes.work;
    const { rows, measured_s: measured, predicted_s: predicted } = stage.step;
    this.where.textContent = this.list.classList.contains("many") ? `${this.index}` : `Stage ${this.index}`;
    if (host)
      element("span", "", this.where, ` · ${host}`);
    this.where.title = `stage ${this.index}${host && `, ${host}`}`;
    const n = stage.last - stage.first + 1;
    this.layers.textContent = n > 1 ? `${stage.first}–${stage.last} ` : n === 1 ? `${stage.first} ` : "– ";
    element("small", "", this.layers, n === 1 ? "layer" : "layers");
    this.facts.memory.textContent = memory > 0 ? bytes(memory) : "–";
    this.facts.memory.title =
      `weights ${bytes(stage.bytes.weights)}, KV cache ${bytes(stage.bytes.kv)}, buffers ${bytes(stage.bytes.work)}`;
    this.facts.step.textContent = measured ? duration(measured) : "–";
    this.facts.step.title = measured ? `a usual step has ${rows.toFixed(rows < 10 ? 1 : 0)} rows` : "";
    if (measured && predicted)
      this.facts.step.title += `; predicted time ${duration(predicted)}`;
  }

  show(shares) {
    const percent = Math.round(100 * (shares ? shares.compute + shares.sampling : 0));
    for (const [part, bar] of Object.entries(this.parts))
      bar.style.flexBasis = `${100 * (shares ? shares[part] : part === "idle" ? 1 : 0)}%`;
    this.facts.busy.textContent = `${percent} %`;
    this.use.setAttribute("aria-label", `busy ${percent} % of the time`);
    this.item.classList.toggle("busy", percent > 0);
  }
}

export class Pipeline {
  constructor() {
    this.list = document.getElementById("stages");
    this.note = document.getElementById("pipeline-note");
    this.track = document.getElementById("track");
    [this.forward, this.back] = this.track.querySelectorAll("path");
    this.dots = this.track.querySelector("g");
    this.cards = [];
    this.samples = [];
    this.turn = 0;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.lay()).observe(this.list);
  }

  update(now) {
    const last = this.samples[this.samples.length - 1];
    if (last && (now.start !== last.start || now.stages.length !== last.stages.length))
      this.samples = []; // another server
    this.samples = [...this.samples, now].slice(-WINDOW_SAMPLES);
    if (now.stages.length !== this.cards.length) {
      this.list.replaceChildren();
      this.list.classList.toggle("many", now.stages.length > MANY);
      this.cards = now.stages.map((_, i) => new Card(this.list, i));
      document.getElementById("legend").hidden = this.cards.length === 0;
    }
    now.stages.forEach((stage, i) => {
      this.cards[i].describe(stage);
      this.cards[i].show(sharesBetween(this.samples[0].stages[i], stage));
    });
    this.lay();
    this.flow(now);
  }

  // Chooses the number of dots, and how much slower than real steps they move.
  flow(now) {
    const first = this.samples[0], seconds = now.time_s - first.time_s;
    const rate = seconds > 0 ? (now.totals.steps - first.totals.steps) / seconds : 0;
    const open = this.samples.reduce((n, s) => n + s.steps_open, 0) / this.samples.length;
    const n = rate > 0 ? Math.min(MOST_DOTS, Math.max(1, Math.round(open))) : 0;
    if (n === 0)
      this.note.textContent = { ready: "at rest", loading: "loading the model" }[now.state] ?? "";
    else {
      const slower = ROUND_S * rate / n;
      this.note.textContent = `${Math.round(rate).toLocaleString("en")} steps/s, ${n} under way` +
        (slower >= 2 ? `; drawn ${rounded(slower)} times slower` : "");
    }
    while (this.dots.childElementCount > n)
      this.dots.lastElementChild.remove();
    while (this.dots.childElementCount < n)
      this.dots.append(document.createElementNS(SVG, "circle"));
    if (n > 0 && !this.frame)
      this.frame = requestAnimationFrame((t) => this.move(t));
  }

  // Draws the line through the nodes of the cards, from row to row along the edges. Where all cards are in one row or
  // column, draws the way back, too.
  lay() {
    const origin = this.track.getBoundingClientRect();
    const at = this.cards.map((card) => {
      const r = card.node.getBoundingClientRect();
      return [r.left + r.width / 2 - origin.left, r.top + r.height / 2 - origin.top];
    });
    const key = JSON.stringify([at, origin.width]);
    if (key === this.laid)
      return;
    this.laid = key;
    this.forward.setAttribute("d", "");
    this.back.setAttribute("d", "");
    if (at.length === 0)
      return;
    const [x0, y0] = at[0], [x1, y1] = at[at.length - 1];
    if (at.every(([, y]) => Math.abs(y - y0) < 2)) {
      const end = origin.width;
      this.forward.setAttribute("d", `M${x0} ${y0}H${end - 8}`);
      this.back.setAttribute("d", `M${end - 8} ${y0}q8 0 8 -8t-8 -8H${x0}q-6 0 -6 8t6 8`);
    } else if (at.every(([x]) => Math.abs(x - x0) < 2)) {
      this.forward.setAttribute("d", `M${x0} ${y0}V${y1 + 40}`);
      this.back.setAttribute("d", `M${x0} ${y1 + 40}q0 8 -8 8t-8 -8V${y0}q0 -7 8 -7t8 7`);
    } else
      this.forward.setAttribute("d", at.map(([x, y], i) => {
        if (i === 0)
          return `M${x} ${y}`;
        if (Math.abs(y - at[i - 1][1]) < 2)
          return `H${x}`;
        return `H${origin.width - 8}q8 0 8 8V${y - 24}q0 8 -8 8H${x - 2}q-6 0 -6 8t6 8H${x}`;
      }).join(""));
  }

  move(time) {
    const dots = [...this.dots.children], seconds = Math.min(0.1, (time - (this.time ?? time)) / 1000);
    const away = this.forward.getTotalLength(), back = this.back.getAttribute("d") ? this.back.getTotalLength() : 0;
    this.time = time;
    if (!this.still.matches)
      this.turn = (this.turn + seconds / ROUND_S) % 1;
    dots.forEach((dot, i) => {
      const s = (this.turn + i / dots.length) % 1 * (away + back);
      const p = s <= away ? this.forward.getPointAtLength(s) : this.back.getPointAtLength(s - away);
      dot.setAttribute("cx", p.x);
      dot.setAttribute("cy", p.y);
      dot.setAttribute("r", s <= away ? 4.5 : 2.2);
      dot.classList.toggle("ids", s > away);
    });
    this.frame = dots.length > 0 ? requestAnimationFrame((t) => this.move(t)) : null;
    if (!this.frame)
      this.time = undefined;
  }
}
