// One training with its ranks, or one group of workers with its calls, as long as it runs.
import { $, ask, bytes, el, fill, follow, number, pill, renew, say, seconds, write } from "/static/dom.js";
import { colour, draw } from "/static/charts.js";

const key = decodeURIComponent(location.pathname.split("/")[2]);
const MOST_ROWS = 200, SILENT_S = 5;
const right = { class: "number" };
const cells = (...texts) => texts.map((text) => el("td", right, text));
const terms = (...pairs) => el("dl", {}, ...pairs.flatMap(([what, told]) => [el("dt", {}, what), el("dd", {}, told)]));
const head = (...names) => renew($("parts-head"), ...names.map(([name, isNumber]) => el("th", isNumber ? right : {}, name)));

function show(data) {
  document.title = `${data.name} - fanwise board`;
  write($("name"), data.name);
  const silent_s = Date.now() / 1000 - data.said_s;
  fill($("state"), pill("running"));
  const where = data.kind === "run" ? [data.program, data.host, `pid ${data.pid}`]
    : data.workers_here === data.workers ? [] : [`${data.workers_here} of its ${data.workers} workers run on this machine`];
  write($("told"), [...where, silent_s > SILENT_S ? `it has said nothing for ${seconds(silent_s)}` : ""].filter(Boolean).join(" - "));
  (data.kind === "run" ? run : group)(data);
}

function run(data) {
  write($("speed-title"), "Samples a second");
  renew($("speed"), el("div", { class: "big" }, number(data.samples_per_s)), terms(["loss", number(data.loss)],
    ["ranks", number(data.world_size)], ["devices", number(data.num_devices)]));
  write($("progress-title"), "Progress");
  const of = data.of ?? null;
  renew($("progress"), el("div", { class: "big" }, seconds(data.elapsed_s)), terms(
    ["epoch", data.epoch === null ? "-" : `${data.epoch + 1}${data.epochs === null ? "" : ` of ${data.epochs}`}`],
    ["samples", of === null ? number(data.done) : `${number(data.done)} of ${number(of)}`], ["left", seconds(data.left_s)],
    ...(data.measured === null ? [] : [["evaluation", `${Math.round(100 * data.measured)} %`]])),
    ...(of ? [el("meter", { min: 0, max: of, value: Math.min(of, data.done) })] : []));
  write($("first-title"), "Samples a second");
  write($("second-title"), "Loss");
  lines("first", data.past, [[1, "samples/s", "accent"]]);
  lines("second", data.past, [[2, "loss", "c1"]]);
  write($("parts-title"), "Ranks");
  head(["rank", true], ["state"], ["devices"], ["pid", true]);
  renew($("parts"), ...data.ranks.slice(0, MOST_ROWS).map((one) => el("tr", {}, ...cells(number(one.rank)), el("td", {}, pill(one.state)),
    el("td", {}, one.devices), ...cells(one.pid ? `${one.pid}` : "-"))));
}

function group(data) {
  write($("speed-title"), "Calls a second");
  renew($("speed"), el("div", { class: "big" }, number(data.a_second.calls_made)), terms(
    ["failed a second", number(data.a_second.calls_failed)], ["timed out a second", number(data.a_second.calls_timed_out)],
    ["sent a second", bytes(data.a_second.bytes_sent)]));
  write($("progress-title"), "Queues");
  renew($("progress"), el("div", { class: "big" }, number(data.calls_waiting + data.actor_calls_waiting)), terms(
    ["calls that wait", number(data.calls_waiting)], ["that wait for an actor", number(data.actor_calls_waiting)],
    ["running", number(data.calls_running)], ["made and not answered", number(data.calls_open)],
    ["workers", `${number(data.workers)}${data.workers_lost ? `, ${number(data.workers_lost)} lost` : ""}`]));
  write($("first-title"), "Calls a second");
  write($("second-title"), "Calls that wait");
  lines("first", data.past, [[1, "made", "accent"], [2, "received", "c1"]]);
  lines("second", data.past, [[3, "waiting", "c2"]]);
  write($("parts-title"), "Workers");
  head(["rank", true], ["worker"], ["made/s", true], ["received/s", true], ["running", true], ["waiting", true], ["open", true], ["process"]);
  renew($("parts"), ...data.members.slice(0, MOST_ROWS).map((one) => el("tr", {}, ...cells(number(one.rank)),
    el("td", {}, one.name, one.is_coordinator ? el("span", { class: "soft small" }, " coordinator") : null),
    ...cells(number(one.a_second.calls_made), number(one.a_second.calls_received), number(one.calls_running),
      number(one.calls_waiting + one.actor_calls_waiting), number(one.calls_open)), el("td", { class: "soft small" }, `${one.host}, pid ${one.pid}`))));
  const pairs = data.members.flatMap((one) => one.peers.filter((peer) => peer.calls_made > 0 || peer.calls_open > 0).map((peer) => [one.name, peer]))
    .sort((one, other) => other[1].calls_made - one[1].calls_made).slice(0, MOST_ROWS);
  $("between").hidden = pairs.length === 0;
  renew($("between-rows"), ...pairs.map(([from, peer]) => el("tr", {}, el("td", {}, from), el("td", {}, peer.name),
    ...cells(number(peer.calls_made), number(peer.calls_open)))));
}

function lines(node, past, series) {
  const times = past.map((point) => new Date(1000 * point[0]));
  draw($(node), () => ({
    traces: series.map(([column, name, tone]) => ({ x: times, y: past.map((point) => point[column]), name, mode: "lines",
      line: { color: colour(tone), width: 2 }, hovertemplate: `%{y:.5g}<br>%{x|%H:%M:%S}<extra>${name}</extra>` })),
    layout: { showlegend: series.length > 1, legend: { orientation: "h", y: 1.15 }, xaxis: { type: "date" }, yaxis: { rangemode: node === "second" && series[0][1] === "loss" ? "normal" : "tozero" } },
  })).catch((error) => say(error.message, true));
}

function gone(text) {
  fill($("state"), pill("finished"));
  say(text, true);
}

ask(`/api/programs/${encodeURIComponent(key)}`).then((data) => {
  show(data);
  follow(`/api/programs/${encodeURIComponent(key)}/live`, show, gone);
}, (error) => gone(error.message));
