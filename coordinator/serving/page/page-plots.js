// coordinator/serving/page/page-plots.js - draws four plots of the last minutes: tokens, time between tokens, sequences,
// and KV memory.
// SPDX-License-Identifier: Apache-2.0
import { duration } from "./page-pipeline.js";

const SPAN_S = 300, RATE_S = 2, LATENCY_S = 10, GAP_S = 5, HEIGHT = 100;
const SVG = "http://www.w3.org/2000/svg";

// The quantile q of the values that were counted between two samples; null if there were no values.
export function quantile(bounds, before, after, q) {
  const counts = after.map((n, i) => n - before[i]), all = counts.reduce((a, b) => a + b, 0);
  let below = 0;
  if (!(all > 0))
    return null;
  for (let i = 0; i < bounds.length; i++) {
    if (below + counts[i] >= q * all) {
      const from = i > 0 ? bounds[i - 1] : 0;
      return from + (bounds[i] - from) * (q * all - below) / counts[i];
    }
    below += counts[i];
  }
  return bounds[bounds.length - 1];
}

// Rounds up to one of 1, 2, 5, 10 …
function niceAbove(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= value * 0.999999);
}

const isWhole = (n) => n >= 100 || Number.isInteger(n);
const count = (n) => n === null ? "–" : isWhole(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
const time = (s) => s === null ? "–" : duration(s);

// The range of a plot, and the position of a value in the range, 0 to 1. The scale is linear from 0, or logarithmic.
function scaleOf(values, least, isLog) {
  const known = values.flat().filter((v) => v !== null && (!isLog || v > 0));
  if (!isLog) {
    const top = niceAbove(Math.max(least ?? 0, 1e-9, ...known));
    return { edges: known.some((v) => v > 0) ? [top] : [], at: (v) => v / top };
  }
  const from = Math.floor(Math.log10(Math.min(...known)));
  const to = Math.max(from + 1, Math.ceil(Math.log10(Math.max(...known))));
  const at = (v) => Math.max(0, (Math.log10(v) - from) / (to - from));
  return { edges: known.length > 0 ? [10 ** from, 10 ** to] : [], at };
}

// The plots. Each line has a name and a function from a sample to its value. The first line is the main one.
const PLOTS = [
  { title: "Generated tokens per second", show: count,
    lines: [["", (s) => s.rates.generated], ["prompt tokens", (s) => s.rates.prompt]] },
  { title: "Time between tokens", show: time, isLog: true,
    lines: [["", (s) => s.next.half], ["p99", (s) => s.next.most]],
    also: (s) => `first token ${time(s.first.half)}` },
  { title: "Running sequences", show: count, least: 4,
    lines: [["", (s) => s.state.sequences.live], ["waiting", (s) => s.state.sequences.waiting]] },
  { title: "KV memory in use", show: (x) => x === null ? "–" : `${Math.round(100 * x)} %`, least: 1,
    lines: [["", (s) => s.state.blocks.held / (s.state.blocks.total || 1)],
            ["with cached", (s) => (s.state.blocks.held + s.state.blocks.cached) / (s.state.blocks.total || 1)]] },
];

function html(tag, name, parent, text = "") {
  const e = document.createElement(tag);
  e.className = name;
  e.textContent = text;
  parent.append(e);
  return e;
}

function svg(tag, name, parent) {
  const e = document.createElementNS(SVG, tag);
  if (name)
    e.setAttribute("class", name);
  parent.append(e);
  return e;
}

class Plot {
  constructor(parent, what) {
    const box = html("div", "plot", parent);
    this.what = what;
    const head = html("div", "title", box);
    html("h3", "", head, what.title);
    this.also = html("span", "", head);
    this.now = html("p", "now", box);
    const area = html("div", "area", box);
    this.svg = svg("svg", "", area);
    this.svg.setAttribute("viewBox", `0 0 ${SPAN_S} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.fill = svg("path", "fill", this.svg);
    this.paths = what.lines.map((_, i) => svg("path", i ? "second" : "", this.svg));
    this.mark = svg("line", "", this.svg);
    this.mark.setAttribute("y2", HEIGHT);
    this.mark.setAttribute("visibility", "hidden");
    const times = html("p", "times", box);
    html("span", "", times, "5 minutes ago");
    this.when = html("span", "", times, "now");
    area.addEventListener("pointermove", (event) => {
      this.pointed = (event.clientX - area.getBoundingClientRect().left) / area.clientWidth;
      this.say();
    });
    area.addEventListener("pointerleave", () => {
      this.pointed = undefined;
      this.say();
    });
  }

  draw(samples) {
    const values = this.what.lines.map(([, of]) => samples.map(of));
    const scale = scaleOf(values, this.what.least, this.what.isLog);
    const end = samples[samples.length - 1].state.time_s;
    const x = (i) => SPAN_S - (end - samples[i].state.time_s), y = (v) => HEIGHT - HEIGHT * scale.at(v);
    this.samples = samples;
    this.end = end;
    values.forEach((line, k) => {
      const pieces = [[]]; // parts of the line without gaps
      line.forEach((v, i) => {
        if (v === null || (i > 0 && samples[i].state.time_s - samples[i - 1].state.time_s > GAP_S))
          pieces.push([]);
        if (v !== null)
          pieces.at(-1).push([x(i).toFixed(2), y(v).toFixed(2)]);
      });
      const drawn = pieces.filter((piece) => piece.length > 0);
      this.paths[k].setAttribute("d", drawn.map((piece) => `M${piece.join("L")}`).join(""));
      if (k === 0)
        this.fill.setAttribute("d",
          drawn.map((piece) => `M${piece[0][0]} ${HEIGHT}L${piece.join("L")}V${HEIGHT}Z`).join(""));
    });
    this.edges = scale.edges.map(this.what.show).join(" to ");
    this.say();
  }

  // Shows the values of the sample under the pointer, or of the latest sample.
  say() {
    if (!this.samples)
      return;
    const wanted = this.end - (this.pointed === undefined ? 0 : (1 - this.pointed) * SPAN_S);
    const near = (a, b) => Math.abs(b.state.time_s - wanted) < Math.abs(a.state.time_s - wanted) ? b : a;
    const sample = this.samples.reduce(near), [main, ...others] = this.what.lines;
    this.now.replaceChildren();
    html("b", "", this.now, this.what.show(main[1](sample)));
    for (const [name, of] of others)
      html("span", "", this.now, ` ${name} ${this.what.show(of(sample))}`).prepend(document.createElement("i"));
    if (this.what.also)
      this.also.textContent = this.what.also(sample);
    html("span", "top", this.now, this.edges).title =
      this.what.isLog ? "the edges, with powers of ten between them" : "the upper edge";
    this.svg.setAttribute("aria-label", `${this.what.title}: ${this.now.textContent}`);
    this.when.textContent = this.pointed === undefined ? "now" : `${Math.round(this.end - sample.state.time_s)} s ago`;
    this.mark.setAttribute("visibility", this.pointed === undefined ? "hidden" : "visible");
    this.mark.setAttribute("x1", SPAN_S - (this.end - sample.state.time_s));
    this.mark.setAttribute("x2", SPAN_S - (this.end - sample.state.time_s));
  }
}

export class Plots {
  constructor(parent) {
    this.plots = PLOTS.map((what) => new Plot(parent, what));
    this.samples = [];
  }

  // The latest sample that is at least this old, or the oldest sample.
  before(state, seconds) {
    const found = this.samples.findLast((s) => s.state.time_s <= state.time_s - seconds + 0.05) ?? this.samples[0];
    return found?.state ?? state;
  }

  update(state) {
    if (this.samples.length > 0 && state.start !== this.samples[this.samples.length - 1].state.start)
      this.samples = []; // another server
    const old = this.before(state, RATE_S), seconds = state.time_s - old.time_s;
    const rate = (name) => seconds > 0 ? (state.totals[name] - old.totals[name]) / seconds : 0;
    const then = this.before(state, LATENCY_S).latency, { bounds_s: bounds, ...latency } = state.latency;
    const at = (name, q) => quantile(bounds, then[name], latency[name], q);
    this.samples.push({
      state,
      rates: { generated: rate("generated"), prompt: rate("prompt_tokens") - rate("cached_tokens") },
      first: { half: at("first_token", 0.5) },
      next: { half: at("next_token", 0.5), most: at("next_token", 0.99) },
    });
    this.samples = this.samples.filter((s) => s.state.time_s >= state.time_s - SPAN_S);
    for (const plot of this.plots)
      plot.draw(this.samples);
  }
}
