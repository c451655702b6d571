// The list of experiments and training runs.
import { $, ask, el, follow, number, page, pill, renew, say, seconds, write } from "/static/dom.js";

let experiments = [];

function ago(at) {
  const since = Date.now() / 1000 - at;
  if (since < 90) return "just now";
  if (since < 5400) return `${Math.round(since / 60)} min ago`;
  if (since < 129600) return `${Math.round(since / 3600)} h ago`;
  return new Date(1000 * at).toISOString().slice(0, 10);
}

function row(one) {
  if (one.state === "unreadable") {
    return el("tr", {}, el("td", {}, one.name), el("td", {}, pill(one.state)), el("td", { colspan: 6, class: "soft small" }, one.error));
  }
  const best = one.best === null ? "-" : `${one.metric} ${number(one.best.value)}${one.best.violated ? " (infeasible)" : ""}`;
  return el("tr", {},
    el("td", {}, el("a", { href: page(one.id) }, one.name)), el("td", {}, pill(one.state)), el("td", { class: "number" }, best),
    el("td", { class: "number wideonly" }, number(one.trials.total)),
    el("td", { class: "number wideonly" }, one.trials.InProgress ? number(one.trials.InProgress) : ""),
    el("td", { class: "number wideonly" }, one.trials.Failed ? number(one.trials.Failed) : ""),
    el("td", { class: "number wideonly" }, seconds(one.elapsed_s)),
    el("td", { class: "soft small wideonly" }, ago(one.changed_s)));
}

function draw() {
  const text = $("filter").value.toLowerCase();
  const matches = experiments.filter((one) => `${one.name} ${one.state}`.toLowerCase().includes(text));
  renew($("rows"), ...matches.slice(0, 500).map(row));
  write($("count"), matches.length === experiments.length ? `${experiments.length} experiment${experiments.length === 1 ? "" : "s"}` : `${matches.length} of ${experiments.length}`);
  $("none").hidden = experiments.length > 0;
}

function show(data) {
  experiments = data.experiments;
  write($("home"), data.home);
  draw();
  const numbers = (...cells) => cells.map(([text, isWide]) => el("td", { class: isWide ? "number wideonly" : "number" }, text));
  $("runs").hidden = data.runs.length === 0;
  renew($("runs-rows"), ...data.runs.slice(0, 200).map((one) => el("tr", {}, el("td", {}, one.name),
    ...numbers([number(one.samples_per_s)], [number(one.loss)], [number(one.world_size)],
      [one.epoch === null ? "-" : `${one.epoch + 1}${one.epochs === null ? "" : ` of ${one.epochs}`}`, true],
      [seconds(one.elapsed_s), true], [seconds(one.left_s), true]),
    el("td", { class: "soft small wideonly" }, `${one.program}, ${one.host}, pid ${one.pid}`))));
}

$("filter").addEventListener("input", draw);
ask("/api/experiments").then(show, (error) => say(error.message, true));
follow("/api/live", show, (error) => say(error, true));
