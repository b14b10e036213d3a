// coordinator/serving/page/page.js - fetches the state of the server once a second, and updates all parts of the page.
// SPDX-License-Identifier: Apache-2.0
import { Pipeline } from "./page-pipeline.js";
import { Plots } from "./page-plots.js";
import { Ranks } from "./page-ranks.js";
import { learnModel, startChat } from "./page-chat.js";
import { ask, hasKey, setKey, whenRefused } from "./page-server.js";

const EVERY_MS = 1000, PATIENCE_MS = 10000;
const WORDS = { loading: "loading", ready: "ready", ending: "ending", failed: "failed", away: "not reachable" };
const byId = (id) => document.getElementById(id);
const pipeline = new Pipeline();
let model; // the model that the chat was set up for
const plots = new Plots(byId("plots"));
const ranks = new Ranks();

// Changes a text only if it differs, because screen readers read changed texts aloud.
function say(element, text) {
  if (element.textContent !== text)
    element.textContent = text;
}

function showState(state, trouble = "", words = WORDS[state] || state) {
  byId("state").className = state;
  say(byId("state").lastElementChild, words);
  say(byId("trouble"), trouble);
  byId("trouble").hidden = !trouble;
}

function draw(now) {
  const percent = Math.floor(100 * now.loaded);
  showState(now.state, now.error ?? "", now.state === "loading" ? `loading, ${percent} %` : undefined);
  byId("loaded").hidden = now.state !== "loading";
  byId("loaded").value = now.loaded;
  byId("model-name").textContent = now.model || "";
  byId("model-facts").textContent =
    [now.description, now.layers && `${now.layers} layers`, now.context && `context ${now.context}`]
      .filter(Boolean).join(", ");
  document.title = now.model ? `${now.model} – Millrace` : "Millrace";
  if (now.state === "ready" && now.model !== model) {
    model = now.model;
    learnModel().catch(() => { model = undefined; });
  }
  pipeline.update(now);
  plots.update(now);
  ranks.update(now.start, now.state === "ready");
}

async function look() {
  try {
    const answer = await ask("page/state", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.ok)
      draw(await answer.json());
    else if (answer.status !== 401)
      showState("away", `the server answered with status ${answer.status}`);
  } catch {
    showState("away");
  }
}

async function lookForEver() {
  for (;;) {
    if (!document.hidden)
      await look();
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

whenRefused(() => {
  byId("key-note").textContent = hasKey() ? "The server does not accept this key." : "";
  byId("key").hidden = false;
  showState("away", "", "needs a key");
});

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key-text").value);
  byId("key").hidden = true;
  look();
});

startChat();
lookForEver();
