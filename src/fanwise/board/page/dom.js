// Functions shared by all pages. Texts of users become text nodes and never markup.

export const $ = (id) => document.getElementById(id);

/** Creates an element. Attributes that are functions become listeners; children that are not nodes become text. */
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

/** Like `fill`, but keeps equal nodes, so that clicks and selections are not lost. */
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

/** Returns true if two elements differ only in their children. */
const isAlike = (one, other) => one.cloneNode(false).isEqualNode(other.cloneNode(false));

/** Sets the text of a node if it differs, so that a selection is not lost. */
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

export const percent = (share) => (share === null || share === undefined ? "-" : `${(100 * share).toFixed(1)} %`);

export const shown = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));

const WORDS = { InProgress: "running" };

export const pill = (state) => el("span", { class: `pill ${state}` }, WORDS[state] ?? state.toLowerCase());

export const api = (name, rest = "") => `/api/experiments/${encodeURIComponent(name)}${rest}`;

export const page = (name, trial = null) =>
  `/experiments/${encodeURIComponent(name)}${trial === null ? "" : `/trials/${trial}`}`;

export async function ask(url, options = {}) {
  const answer = await fetch(url, options);
  const body = (answer.headers.get("content-type") ?? "").startsWith("application/json")
    ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw Object.assign(new Error(body.error ?? `status ${answer.status}`), { status: answer.status });
  return body;
}

/** Sends a command to a running search and shows its answer. Returns true if it was accepted. */
export async function command(name, word, ...args) {
  try {
    const headers = { "Content-Type": "application/json" };
    const { answer } = await ask(api(name, "/commands"), { method: "POST", headers, body: JSON.stringify({ word, args }) });
    say(answer);
    return true;
  } catch (error) {
    say(error.message, true);
    return false;
  }
}

let messageTimer = 0;

export function say(text, isBad = false) {
  const node = $("message");
  node.textContent = text;
  node.classList.toggle("bad", isBad);
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => { node.textContent = ""; }, isBad ? 12000 : 6000);
}

/** Asks the user, and sends the command if the answer is yes. */
export function confirmCommand(title, text, yes, ...words) {
  const dialog = $("ask");
  write($("ask-title"), title);
  write($("ask-text"), text);
  write($("ask-yes"), yes);
  $("ask-yes").onclick = () => { dialog.close(); command(...words); };
  $("ask-no").onclick = () => dialog.close();
  dialog.showModal();
  $("ask-no").focus();
}

/** Follows server-sent events while the page is visible. */
export function follow(url, onData, onEnd) {
  let source = null;
  const update = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(url);
      source.onmessage = (event) => onData(JSON.parse(event.data));
      source.addEventListener("gone", (event) => {
        source.close();
        onEnd(JSON.parse(event.data).error);
      });
    }
  };
  document.addEventListener("visibilitychange", update);
  update();
}

/** Resolves after the changes of the page have been painted, or soon if the page is hidden. */
export function painted() {
  if (document.hidden) return new Promise((resolve) => setTimeout(resolve));
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Returns a function that calls `make`, never twice at once, and less often if `make` takes long. */
export function paced(make) {
  let isBusy = false, isRequested = false, isFirst = true, next = 0;
  const run = async () => {
    if (isBusy) { isRequested = true; return; }
    isBusy = true;
    isRequested = false;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, next - performance.now())));
    const started = performance.now();
    try { await make(); } catch (error) { if (error.status !== 409) say(error.message, true); }
    await painted();
    const took = isFirst ? 0 : performance.now() - started;  // the first call loads plotly.js
    next = performance.now() + Math.min(30000, Math.max(900, 20 * took));
    isFirst = false;
    isBusy = false;
    if (isRequested) run();
  };
  return run;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el("textarea", {}, text);  // browsers allow the clipboard API only with HTTPS and on localhost
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("copied");
}
