// One training run with its ranks, as long as it runs.
import { $, ask, el, fill, follow, number, pill, renew, say, seconds, write } from "/static/dom.js";
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
  write($("told"), [data.program, data.host, `pid ${data.pid}`, silent_s > SILENT_S ? `it has said nothing for ${seconds(silent_s)}` : ""].filter(Boolean).join(" - "));
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
