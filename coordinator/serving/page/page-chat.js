// coordinator/serving/page/page-chat.js - a conversation with the model, or one text that the model continues. Answers are
// streamed. Texts are shown as plain text: markup in a text has no effect.
// SPDX-License-Identifier: Apache-2.0
import { ask } from "./page-server.js";
import { duration } from "./page-pipeline.js";

const byId = (id) => document.getElementById(id);
const log = byId("messages");
const input = byId("ask-text");
let history = []; // {role, content}
let story = null; // the one text that user and model write: its element in the log, and its content
let running = null; // the AbortController of the answer under way

// Yields the data of each server-sent event. Comments and other fields are skipped.
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

// Changes the log. If the end of the log was visible before, scrolls to the new end.
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
      this.details.open = false; // the reasoning has ended
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
      facts.push(`${((n - 1) / seconds).toFixed(1)} tokens per second`);
    if (this.first)
      facts.push(`first token after ${duration((this.first - this.begin) / 1000)}`);
    if (stopped)
      facts.push("stopped");
    if (this.finish === "length")
      facts.push("ended at the maximum number of tokens");
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

// Adds the typed text to the one text as a new paragraph. If nothing was typed, the model continues the text as it is.
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
    return `the server answered with status ${answer.status}`;
  }
}

// Shows the answer to the last message, or the continuation of the one text, and returns the new text.
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
      throw new Error("the connection ended before the answer was complete");
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
    turns.pop(); // a question without an answer does not stay in the conversation
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
  say(log.querySelector(".empty"), (isText ? "Begin a text, and the model continues it." : "Ask the model something.") +
    " What you write is sent to this server only.");
}

// A model without a chat template has not learned to answer. For such a model, the chat mode is disabled.
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
