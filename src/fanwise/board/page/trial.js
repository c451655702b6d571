// One trial: its configuration, curve and output.
import { $, api, ask, command, confirmCommand, copy, el, fill, follow, number, paced, page, pill, renew, say, seconds, shown, write } from "/static/dom.js";
import { color, draw } from "/static/charts.js";

const [, , experiment, , id] = location.pathname.split("/");
const name = decodeURIComponent(experiment), trial = Number(id);
let last = null;

function details(data, isRunning) {
  last = data;
  document.title = `trial ${trial} of ${name} - fanwise board`;
  write($("name"), `Trial ${trial}`);
  fill($("state"), pill(data.status));
  const isAlive = isRunning && (data.status === "InProgress" || data.status === "Paused");
  $("stop").disabled = !isAlive;
  $("pause").disabled = !isAlive;
  $("pause").hidden = data.status === "Paused";
  $("unpause").hidden = !isAlive || data.status !== "Paused";
  const source = data.source === null ? [] : [el("dt", {}, "cloned from"), el("dd", {}, el("a", { href: page(name, data.source) }, `trial ${data.source}`))];
  renew($("config"), ...Object.entries(data.config).flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, shown(value))]), ...source);
  renew($("last"), ...Object.entries(data.values).flatMap(([key, series]) => [el("dt", {}, key), el("dd", {}, shown(series.last ?? "-"))]),
    el("dt", {}, "reports"), el("dd", {}, number(data.reports)), el("dt", {}, "in the objective"), el("dd", {}, seconds(data.seconds)),
    ...(data.violated ? [el("dt", {}, "violates"), el("dd", {}, data.violated)] : []),
    ...(data.checkpoint ? [el("dt", {}, "checkpoint"), el("dd", {}, data.checkpoint)] : []));
  $("failed").hidden = data.failure === null;
  if (data.failure !== null) {
    write($("failed-text"), `${data.failure.kind}: ${data.failure.text}`);
    write($("failed-where"), data.failure.traceback);
    $("failed-where").hidden = !data.failure.traceback;
  }
  log($("output"), data.output || "no output");
  log($("errors"), data.errors);
  $("errors").hidden = $("errors-title").hidden = !data.errors;
  renew($("attempts"), ...data.attempts.map((one) => el("tr", {}, el("td", { class: "number" }, `${one.attempt}`), el("td", {}, pill(one.status)),
    el("td", { class: "number" }, number(one.worker)), el("td", {}, one.host ?? ""), el("td", { class: "number" }, number(one.from_iter)),
    el("td", { class: "number" }, seconds(one.started)), el("td", { class: "number" }, seconds(one.seconds)))));
  const numeric = Object.keys(data.values).filter((key) => data.values[key].v.length > 0);
  if (numeric.join("\n") !== [...$("value").options].map((one) => one.value).join("\n")) {
    const before = $("value").value;
    fill($("value"), ...numeric.map((key) => el("option", { value: key }, key)));
    $("value").value = numeric.includes(before) ? before : numeric.includes(data.metric) ? data.metric : numeric[0] ?? "";
  }
  return curve();
}

/** Sets the text, and keeps the end visible if it was. */
function log(node, text) {
  const isAtEnd = node.scrollTop + node.clientHeight >= node.scrollHeight - 8;
  write(node, text);
  if (isAtEnd) node.scrollTop = node.scrollHeight;
}

async function curve() {
  const series = last?.values[$("value").value] ?? { n: [], v: [], t: [] };
  await draw($("curve"), () => ({
    traces: [{ x: series.n, y: series.v, text: series.t.map((at) => `${at} s`), mode: "lines+markers", marker: { size: series.n.length > 100 ? 2 : 5 },
      line: { color: color("accent"), width: 2 }, hovertemplate: "report %{x}, at %{text}<br>%{y:.6g}<extra></extra>" }],
    layout: { xaxis: { title: { text: "reports" }, dtick: series.n.length < 15 ? 1 : null }, yaxis: {}, uirevision: $("value").value },
  }));
}

let isRunning = false;
const refresh = paced(async () => details(await ask(api(name, `/trials/${trial}`)), isRunning));

write($("up"), name);
$("up").href = page(name);
write($("name"), `Trial ${trial}`);
$("value").addEventListener("change", curve);
$("copy").addEventListener("click", () => { if (last) copy(last.python); });
$("pause").addEventListener("click", () => confirmCommand(`Pause trial ${trial}?`,
  "It stops at its next report and frees its worker. It continues later from its last checkpoint, or from scratch if it has none.",
  "Pause it", name, "pause", trial));
$("unpause").addEventListener("click", () => command(name, "unpause", trial));
$("stop").addEventListener("click", () =>
  confirmCommand(`Stop trial ${trial}?`, "It cannot continue. Its reports are kept.", "Stop it", name, "stop_trial", trial));
refresh();
follow(api(name, "/live"), (data) => {
  isRunning = data.state === "running";
  if (isRunning || last === null || data.seq !== last.seq || !$("stop").disabled) refresh();
}, (error) => say(error, true));
