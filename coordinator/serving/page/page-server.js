// coordinator/serving/page/page-server.js - requests to this server, with the key that the user gave.
// SPDX-License-Identifier: Apache-2.0
const NAME = "millrace-key";
let key = "";
let onRefused = () => {};
try {
  key = sessionStorage.getItem(NAME) || "";
} catch { /* storage is off: the key lives as long as the page */ }

export function setKey(text) {
  key = text;
  try {
    sessionStorage.setItem(NAME, text);
  } catch { /* as above */ }
}

export const hasKey = () => key !== "";
export const whenRefused = (listener) => { onRefused = listener; };

// Headers take characters below 256 only, which stand for bytes.
const utf8 = (text) => String.fromCharCode(...new TextEncoder().encode(text));

// fetch, relative to the page, so that it may lie under a prefix.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key)
    headers.Authorization = `Bearer ${utf8(key)}`;
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.status === 401)
    onRefused();
  return answer;
}
