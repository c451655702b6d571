// What all pages share. Texts of users come in here as values and leave as text nodes: no markup is ever made of them.

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; a child that is no node becomes text. Functions are listeners. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** As `fill`, but what is equal stays the node that it was: a click on it is not lost, and a selection stays. */
export function renew(node, ...children) {
  children.forEach((child, index) => {
    const old = node.childNodes[index];
    if (old === undefined) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old.nodeType === 1 && child.nodeType === 1 && isAlike(old, child)) renew(old, ...child.childNodes);
    else old.replaceWith(child);
  });
  while (node.childNodes.length > children.length) node.lastChild.remove();
}

/** Two elements that differ in nothing but what is in them. */
const isAlike = (one, other) => one.cloneNode(false).isEqualNode(other.cloneNode(false));

/** Changes a text only where it is another one, so that a selection of the reader stays. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function number(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const whole = Math.round(value), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  const place = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(Number((value / 1024 ** place).toPrecision(3)))} ${UNITS[place]}`;
}

export const percent = (share) => (share === null || share === undefined ? "-" : `${(100 * share).toFixed(1)} %`);

export const shown = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));

const WORDS = { InProgress: "running", "broken-off": "broken off" };

export const pill = (state) => el("span", { class: `pill ${state}` }, WORDS[state] ?? state.toLowerCase());

export const api = (name, rest = "") => `/api/experiments/${encodeURIComponent(name)}${rest}`;

export const page = (name, trial = null) =>
  `/experiments/${encodeURIComponent(name)}${trial === null ? "" : `/trials/${trial}`}`;

export const program = (key) => `/programs/${encodeURIComponent(key)}`;

export async function ask(url, options = {}) {
  const answer = await fetch(url, options);
  const body = (answer.headers.get("content-type") ?? "").startsWith("application/json")
    ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw Object.assign(new Error(body.error ?? `status ${answer.status}`), { status: answer.status });
  return body;
}

/** Tells a running search what is wanted; says what it answers. */
export async function command(name, word, ...args) {
  try {
    const headers = { "Content-Type": "application/json" };
    const told = await ask(api(name, "/commands"), { method: "POST", headers, body: JSON.stringify({ word, args }) });
    say(told.answer);
    return true;
  } catch (error) {
    say(error.message, true);
    return false;
  }
}

let silence = 0;

export function say(text, isBad = false) {
  const node = $("said");
  node.textContent = text;
  node.classList.toggle("bad", isBad);
  clearTimeout(silence);
  silence = setTimeout(() => { node.textContent = ""; }, isBad ? 12000 : 6000);
}

/** Asks before anything is done that cannot be undone. */
export function confirmed(title, text, yes) {
  const dialog = $("ask");
  write($("ask-title"), title);
  write($("ask-text"), text);
  write($("ask-yes"), yes);
  return new Promise((resolve) => {
    const answer = (isYes) => { dialog.close(); resolve(isYes); };
    $("ask-yes").onclick = () => answer(true);
    $("ask-no").onclick = () => answer(false);
    // Escape. Not `close`, which comes later: it could answer the next question, asked meanwhile.
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
    $("ask-no").focus();
  });
}

/** Live events as long as the page is seen: one in the background asks for nothing. */
export function follow(url, heard, gone) {
  let source = null;
  const look = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(url);
      source.onmessage = (event) => heard(JSON.parse(event.data));
      source.addEventListener("gone", (event) => {
        source.close();
        gone(JSON.parse(event.data).error);
      });
    }
  };
  document.addEventListener("visibilitychange", look);
  look();
}

/** Until what has changed in the page is on the screen; of one that is not seen, for a moment. */
export function painted() {
  if (document.hidden) return new Promise((resolve) => setTimeout(resolve));
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Calls `make` now and whenever it is asked again; never twice at once, and not more often than it can afford. */
export function paced(make) {
  let isBusy = false, isWanted = false, isFirst = true, next = 0;
  const run = async () => {
    if (isBusy) { isWanted = true; return; }
    isBusy = true;
    isWanted = false;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, next - performance.now())));
    const began = performance.now();
    try { await make(); } catch (error) { if (error.status !== 409) say(error.message, true); }
    await painted();
    const took = isFirst ? 0 : performance.now() - began;  // the first time plotly.js is read
    next = performance.now() + Math.min(30000, Math.max(900, 20 * took));
    isFirst = false;
    isBusy = false;
    if (isWanted) run();
  };
  return run;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el("textarea", {}, text);  // without HTTPS only this machine may use the clipboard
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("copied");
}
