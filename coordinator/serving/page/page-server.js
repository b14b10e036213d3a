// coordinator/serving/page/page-server.js - sends requests to this server, with the API key that the user gave.
// SPDX-License-Identifier: Apache-2.0
const NAME = "millrace-key";
let key = "";
let onRefused = () => {};
try {
  key = sessionStorage.getItem(NAME) || "";
} catch { /* the browser has no storage: the key is lost with the page */ }

export function setKey(text) {
  key = text;
  try {
    sessionStorage.setItem(NAME, text);
  } catch { /* as above */ }
}

export const hasKey = () => key !== "";
export const whenRefused = (listener) => { onRefused = listener; };

// A header may have characters below 256 only, which stand for bytes. So the text becomes its UTF-8 bytes.
const utf8 = (text) => String.fromCharCode(...new TextEncoder().encode(text));

// Fetches a path relative to the page, so that a proxy may serve the page under a prefix.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const used = key;
  if (used)
    headers.Authorization = `Bearer ${utf8(used)}`;
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.status === 401 && used === key) // else the user has given another one since
    onRefused();
  return answer;
}
