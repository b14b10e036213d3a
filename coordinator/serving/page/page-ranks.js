// coordinator/serving/page/page-ranks.js - lists the ranks of a server with --recover: what each one is for, and buttons
// that move its layers away and let it have layers again.
// SPDX-License-Identifier: Apache-2.0
import { bytes, duration } from "./page-pipeline.js";
import { ask } from "./page-server.js";

const REFUSAL_MS = 10000; // how long the text of a refusal stays
const DRAINS = { stage: true, suspect: true, spare: true, drained: false }; // others have no button

class Rank {
  constructor(list, number, post) {
    this.item = document.createElement("li");
    this.text = document.createElement("span");
    this.button = document.createElement("button");
    this.button.className = "plain";
    this.button.type = "button";
    this.button.addEventListener("click", () => post(`cluster/${this.drains ? "drain" : "undrain"}?rank=${number}`));
    this.item.append(this.text, this.button);
    list.append(this.item);
    this.number = number;
  }

  describe(state) {
    this.drains = DRAINS[state];
    this.item.className = `rank-${state}`;
    this.text.textContent = `rank ${this.number}: ${state}`;
    this.button.textContent = this.drains ? "Drain" : "Take again";
    this.button.title = this.drains ? "other ranks take its layers" : "it may have layers again";
    this.button.hidden = this.drains === undefined;
  }
}

function summary({ epoch, ranks, recovery }) {
  if (recovery.missing_bytes > 0)
    return `requests wait: ${bytes(recovery.missing_bytes)} of memory are missing`;
  if (recovery.recoveries === 0)
    return ranks.includes("lost") ? "a rank without layers was lost" : "no rank was lost";
  const parts = ["detection", "planning", "loading", "computing"].filter((part) => recovery[`${part}_s`] > 0);
  return `plan ${epoch}; the last change: ` + parts.map((part) => `${part} ${duration(recovery[`${part}_s`])}`).join(", ");
}

export class Ranks {
  constructor() {
    this.section = document.getElementById("ranks");
    this.list = document.getElementById("ranks-list");
    this.note = document.getElementById("ranks-note");
    this.ranks = [];
  }

  // start: another value means another server.
  async update(start, isReady) {
    if (!isReady || (this.start === start && this.hasNone))
      return;
    try {
      const answer = await ask("plan");
      if (answer.ok)
        this.draw(start, await answer.json());
    } catch { /* the next look says that the server cannot be reached */ }
  }

  draw(start, plan) {
    this.start = start;
    this.hasNone = !plan.ranks;
    this.section.hidden = this.hasNone;
    if (this.hasNone)
      return;
    if (plan.ranks.length !== this.ranks.length) {
      this.list.replaceChildren();
      this.ranks = plan.ranks.map((_, i) => new Rank(this.list, i, (path) => this.post(path)));
    }
    plan.ranks.forEach((state, i) => this.ranks[i].describe(state));
    if (this.refusal && performance.now() - this.refusedAt > REFUSAL_MS)
      this.refusal = undefined;
    const text = this.refusal ?? summary(plan);
    if (this.note.textContent !== text)
      this.note.textContent = text;
  }

  async post(path) {
    this.refusal = undefined;
    try {
      const answer = await ask(path, { method: "POST" });
      if (!answer.ok)
        this.refusal = (await answer.json()).error.message;
    } catch {
      this.refusal = "the server cannot be reached";
    }
    this.refusedAt = performance.now();
    if (this.refusal)
      this.note.textContent = this.refusal;
  }
}
