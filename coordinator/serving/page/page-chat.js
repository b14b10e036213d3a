// coordinator/serving/page/page-chat.js - a conversation with the model, or one text that it goes on with, streamed as it is
// written. Texts are shown as they are: nothing in them is markup.
// SPDX-License-Identifier: Apache-2.0
import { ask } from "./page-server.js";
import { duration } from "./page-pipeline.js";

const byId = (id) => document.getElementById(id);
const log = byId("messages");
const input = byId("ask-text");
let history = []; // {role, content}
let story = null; // the one text: its element in the log, and what it says
let running = null; // the AbortController of the answer under way

// The data of server-sent events, one after the other; comments and other fields are passed over.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split(/\r?\n/);
    rest = done ? "" : lines.pop();
    for (const line of lines)
      if (line.startsWith("data:"))
        yield line.slice(5).trimStart();
    if (done)
      return;
  }
}

function add(parent, tag, name, text = "") {
  const e = document.createElement(tag);
  e.className = name;
  e.textContent = text;
  parent.append(e);
  return e;
}

function say(element, text) {
  if (element)
    element.textContent = text;
}

// Adds to the log; follows the text where its end was in sight.
function follow(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  change();
  if (near)
    log.scrollTop = log.scrollHeight;
}

class Answer {
  // box: an article with the div.text that the answer is added to
  constructor(box) {
    this.box = box;
    this.box.classList.add("live");
    this.text = box.querySelector(".text").appendChild(document.createTextNode(""));
    this.begin = performance.now();
    this.usage = null;
    this.finish = null;
  }

  take(event) {
    if (event.error)
      throw new Error(event.error.message || "the server reports an error");
    const choice = event.choices?.[0], delta = choice?.delta;
    const text = delta?.content ?? choice?.text ?? "", thought = delta?.reasoning_content ?? "";
    this.usage = event.usage ?? this.usage;
    this.finish = choice?.finish_reason ?? this.finish;
    if (text && this.details && !this.text.data)
      this.details.open = false; // it has thought enough
    if (text || thought)
      this.first ??= performance.now();
    follow(() => {
      if (thought)
        this.thoughts().appendData(thought);
      this.text.appendData(text);
    });
  }

  thoughts() {
    if (!this.thought) {
      this.details = document.createElement("details");
      this.details.open = true;
      add(this.details, "summary", "", "Reasoning");
      this.thought = add(this.details, "div", "text").appendChild(document.createTextNode(""));
      this.box.prepend(this.details);
    }
    return this.thought;
  }

  end(stopped) {
    const seconds = (performance.now() - (this.first ?? this.begin)) / 1000, n = this.usage?.completion_tokens;
    const facts = [];
    if (n)
      facts.push(`${n} tokens`);
    if (n > 1 && seconds > 0)
      facts.push(`${((n - 1) / seconds).toFixed(1)} per second`);
    if (this.first)
      facts.push(`first after ${duration((this.first - this.begin) / 1000)}`);
    if (stopped)
      facts.push("stopped");
    if (this.finish === "length")
      facts.push("ended by the limit of tokens");
    follow(() => {
      this.box.classList.remove("live");
      add(this.box, "p", "facts", facts.join(", "));
    });
  }
}

function addMessage(role, text = "") {
  const box = add(log, "article", `message ${role}`);
  add(box, "div", "text", text);
  return box;
}

// What was typed begins a paragraph of the one text; without any, the model goes on as it stands.
function addParagraph(typed) {
  story ??= { box: addMessage("story"), text: "" };
  const paragraph = typed && story.text ? "\n\n" + typed : typed;
  for (const old of story.box.querySelectorAll(".facts, .error"))
    old.remove();
  if (paragraph)
    add(story.box.querySelector(".text"), "span", "typed", paragraph);
  story.text += paragraph;
}

function request(mode) {
  const temperature = parseFloat(byId("ask-temperature").value), tokens = parseInt(byId("ask-tokens").value, 10);
  const system = byId("ask-system").value.trim();
  const options = { stream: true, stream_options: { include_usage: true } };
  if (isFinite(temperature))
    options.temperature = temperature;
  if (isFinite(tokens))
    options.max_tokens = tokens;
  if (mode === "text")
    return ["v1/completions", { prompt: story.text, ...options }];
  const messages = system ? [{ role: "system", content: system }, ...history] : history;
  return ["v1/chat/completions", { messages, ...options }];
}

async function errorOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answers with status ${answer.status}`;
  }
}

// Shows the answer to what was said last, or what the model goes on with, and returns its text.
async function run(mode) {
  const answer = new Answer(mode === "text" ? story.box : addMessage("assistant")), [path, body] = request(mode);
  let stopped = false;
  running = new AbortController();
  try {
    const reply = await ask(path, {
      method: "POST", signal: running.signal, body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" } });
    if (!reply.ok)
      throw new Error(await errorOf(reply));
    for await (const data of events(reply.body))
      if (data !== "[DONE]")
        answer.take(JSON.parse(data));
    if (!answer.finish)
      throw new Error("the answer broke off");
  } catch (error) {
    stopped = running.signal.aborted;
    if (!stopped)
      follow(() => add(answer.box, "p", "error", error.message));
  }
  running = null;
  answer.end(stopped);
  return answer.text.data;
}

async function goOn(typed) {
  addParagraph(typed);
  const own = story;
  own.text += await run("text");
}

async function converse(text) {
  const turns = history;
  addMessage("user", text);
  turns.push({ role: "user", content: text });
  const content = await run("chat");
  if (content)
    turns.push({ role: "assistant", content });
  else
    turns.pop(); // a question without an answer is no part of the conversation
}

function grow() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

function showRunning(is) {
  byId("ask-send").textContent = is ? "Stop" : "Send";
  byId("ask-send").classList.toggle("stop", is);
}

async function send() {
  const text = input.value, mode = byId("ask-mode").value;
  if (running || !(text.trim() || (mode === "text" && story)))
    return;
  log.querySelector(".empty")?.remove();
  byId("chat-new").hidden = false;
  input.value = "";
  grow();
  showRunning(true);
  const done = mode === "text" ? goOn(text.trim() ? text : "") : converse(text);
  showMode();
  log.scrollTop = log.scrollHeight;
  await done;
  showRunning(false);
}

function showMode() {
  const isText = byId("ask-mode").value === "text";
  input.placeholder = !isText ? "Your message" : story ? "More of the text, or nothing" : "The beginning of a text";
  say(log.querySelector(".empty"), (isText ? "Begin a text, and the model goes on." : "Ask the model something.") +
    " What you write goes to this server only.");
}

// A model without a chat template has not learned to talk: it continues texts.
export async function learnModel() {
  const answer = await ask("props"), chat = byId("ask-mode").querySelector("[value=chat]");
  chat.disabled = answer.ok && (await answer.json()).chat_template === null;
  if (chat.disabled)
    byId("ask-mode").value = "text";
  showMode();
}

export function startChat() {
  byId("ask-mode").addEventListener("change", showMode);
  input.addEventListener("input", grow);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape")
      running?.abort();
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running)
      running.abort();
    else
      send();
  });
  byId("chat-new").addEventListener("click", () => {
    running?.abort();
    history = [];
    story = null;
    log.replaceChildren();
    byId("chat-new").hidden = true;
    showMode();
    input.focus();
  });
}
