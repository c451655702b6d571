// One experiment: its live summary, and the view of the selected tab.
import { $, api, ask, command, confirmCommand, copy, el, fill, follow, number, paced, page, painted, percent, pill, renew, say, seconds, shown, write }
  from "/static/dom.js";
import { NUM_COLORS, color, draw, loaded, plain, range } from "/static/charts.js";

const name = decodeURIComponent(location.pathname.split("/")[2]);
const go = (trial) => { location.href = page(name, trial); };
const isSame = (left, right) => JSON.stringify(left) === JSON.stringify(right);
let last = null;  // summary
let isLogChosen = false, isOverChosen = false;

// -- the summary ------------------------------------------------------------------------------------------------------

function summary(data) {
  const before = last;
  last = data;
  document.title = `${data.name} - fanwise board`;
  write($("name"), data.name);
  fill($("state"), pill(data.state));
  const isRunning = data.state === "running";
  $("controls").hidden = !isRunning;
  $("workers-control").hidden = !(data.n_workers > 0);
  if (before?.n_workers !== data.n_workers) $("n-workers").value = data.n_workers ?? "";
  const details = [data.method, data.objective && `objective ${data.objective}`, data.path, data.reason && `${isRunning ? "ending" : "ended"}: ${data.reason}`];
  write($("details"), details.filter(Boolean).join(" - "));
  if (before === null || !isSame(before.best, data.best)) best(data);
  budget(data);
  counts(data);
  const hasFront = (data.objectives ?? []).length > 1;
  if ($("tab-front").hidden === hasFront) {
    $("tab-front").hidden = !hasFront;
    showTab();
  }
}

function best(data) {
  const report = data.best;
  if (report === null) { fill($("best"), "no report yet"); return; }
  const note = report.violated ? `no trial meets all constraints; this one violates ${report.violated}` : null;
  fill($("best"),
    el("div", { class: "big" }, number(report.value)),
    el("div", { class: "small" }, `${data.metric}, ${data.mode === "min" ? "smaller" : "larger"} is better`,
      data.objectives?.length > 1 ? `, the first of ${data.objectives.length} objectives - ` : " - ",
      el("a", { href: page(name, report.trial) }, `trial ${report.trial}`)),
    note && el("div", { class: "small" }, note),
    report.python && el("pre", {}, report.python),
    report.python && el("button", { class: "link small", click: () => copy(report.python) }, "copy as Python"));
}

function budget(data) {
  if (!data.budget) { fill($("budget"), el("div", { class: "big" }, seconds(data.elapsed_s))); return; }
  const limits = data.budget.flatMap((one) => {
    const isTime = one.name === "seconds", format = isTime ? seconds : number;
    if (one.used === null) return [el("dt", {}, one.name), el("dd", {}, shown(one.limit))];
    const left = Math.max(0, one.limit - one.used);
    return [el("dt", {}, isTime ? "time" : one.name),
      el("dd", {}, data.state === "running" ? `${format(left)} of ${format(one.limit)} left` : `${format(one.used)} of ${format(one.limit)}`,
        el("meter", { min: 0, max: one.limit, value: Math.min(one.used, one.limit) }))];
  });
  renew($("budget"), el("div", { class: "big" }, seconds(data.elapsed_s)),
    el("dl", {}, ...limits, el("dt", {}, "workers"), el("dd", {}, number(data.n_workers)),
      el("dt", {}, "utilization"), el("dd", {}, percent(data.utilization))));
}

function counts(data) {
  const { total, ...others } = data.trials;
  renew($("counts"), ...[el("div", { class: "big" }, number(total)),
    el("div", { class: "row small" }, ...Object.entries(others).filter(([, count]) => count > 0)
      .map(([status, count]) => el("span", {}, pill(status), ` ${number(count)}`))),
    data.num_reports === undefined ? null : el("p", { class: "small soft" }, `${number(data.num_reports)} reports`
      + (data.num_not_finite ? `, ${number(data.num_not_finite)} without a finite ${data.metric}` : ""))].filter(Boolean));
}

// -- the views --------------------------------------------------------------------------------------------------------

async function curves() {
  const data = await ask(api(name, "/curves"));
  if (!isLogChosen) $("log").checked = data.scale.log;
  if (!isOverChosen && data.num_trials > 0) {  // over time, the curves of many trials cannot be distinguished
    $("over").value = data.num_trials > 200 ? "n" : "t";
    isOverChosen = true;
  }
  write($("curves-title"), `Learning curves: ${data.metric}`);
  write($("incumbent-title"), `Best ${data.metric} so far`);
  const drawn = data.curves.length;
  write($("curves-note"), drawn === 0 ? "no report yet" : drawn < data.num_trials
    ? `${number(drawn)} of ${number(data.num_trials)} trials: the best, the running and an even sample of the others`
      + ($("over").value === "t" ? "; the band contains the middle 80 % of all reports" : "")
    : "");
  const steps = data.incumbents, at = steps.at(-1);
  await draw($("incumbent"), () => ({
    traces: [{
      x: [...steps.map((one) => one[0]), ...(at ? [data.last_s] : [])],
      y: [...steps.map((one) => one[1]), ...(at ? [at[1]] : [])],
      customdata: [...steps.map((one) => one[2]), ...(at ? [at[2]] : [])],
      mode: "lines+markers", line: { shape: "hv", color: color("accent"), width: 2 }, marker: { size: steps.length > 100 ? 3 : 6 },
      hovertemplate: "%{y:.5g} at %{x:.1f} s, trial %{customdata}<extra></extra>",
    }],
    layout: { xaxis: { title: { text: "seconds since the first worker was ready" }, rangemode: "tozero" }, yaxis: { type: $("log").checked ? "log" : "linear" } },
  }), go);
  const over = $("over").value, groups = Array.from({ length: NUM_COLORS }, () => ({ x: [], y: [], about: [] }));
  for (const one of data.curves) {
    const group = groups[one.trial % NUM_COLORS];
    group.x.push(...one[over], null);
    group.y.push(...one.v, null);
    group.about.push(...one.n.map((n) => [one.trial, n, one.status]), null);
  }
  const bestTrial = data.curves.find((one) => at && one.trial === at[2]);
  const points = data.curves.reduce((sum, one) => sum + one.v.length, 0), hasMarkers = points < 1500;
  const alone = hasMarkers ? [] : data.curves.filter((one) => one.v.length === 1);  // a line with one point is invisible
  const strength = drawn > 60 ? 0.45 : drawn > 20 ? 0.7 : 0.95;
  await draw($("curves"), () => ({
    traces: [
      ...(data.bins && over === "t" ? band(data.bins) : []),
      ...groups.map((group, index) => ({
        x: group.x, y: group.y, customdata: group.about, mode: hasMarkers ? "lines+markers" : "lines", opacity: strength, connectgaps: false,
        line: { color: color(`c${index}`), width: drawn > 60 ? 1 : 1.5 }, marker: { size: drawn > 30 ? 3 : 4, color: color(`c${index}`) },
        hovertemplate: "trial %{customdata[0]}, report %{customdata[1]}<br>%{y:.5g}<br>%{customdata[2]}<extra></extra>",
      })),
      { x: alone.map((one) => one[over][0]), y: alone.map((one) => one.v[0]), customdata: alone.map((one) => [one.trial, 1, one.status]), mode: "markers",
        opacity: strength, marker: { size: 3, color: alone.map((one) => color(`c${one.trial % NUM_COLORS}`)) },
        hovertemplate: "trial %{customdata[0]}, the only report<br>%{y:.5g}<br>%{customdata[2]}<extra></extra>" },
      ...(bestTrial ? [{
        x: bestTrial[over], y: bestTrial.v, customdata: bestTrial.n.map((n) => [bestTrial.trial, n, bestTrial.status]), mode: "lines",
        line: { color: color("ink"), width: 3 }, hovertemplate: "trial %{customdata[0]} (best), report %{customdata[1]}<br>%{y:.5g}<extra></extra>",
      }] : []),
    ],
    layout: {
      xaxis: { title: { text: over === "t" ? "seconds" : "reports of a trial" }, rangemode: "tozero" },
      yaxis: range(data.scale, $("log").checked),
      uirevision: `${over} ${$("log").checked}`,
    },
  }), go);
}

function band(bins) {
  const plainLine = { mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  return [
    { x: bins.times_s, y: bins.low, ...plainLine },
    { x: bins.times_s, y: bins.high, ...plainLine, fill: "tonexty", fillcolor: color("grid") },
    { x: bins.times_s, y: bins.middle, mode: "lines", line: { color: color("soft"), width: 1.2, dash: "dot" }, hovertemplate: "median %{y:.5g}<extra></extra>" },
  ];
}

async function workers() {
  const data = await ask(api(name, "/workers"));
  const { busy, startup, idle } = data.shares;
  write($("workers-note"), busy === null ? "no objective has started yet"
    : `in the objective ${percent(busy)}, starting trials ${percent(startup)}, idle ${percent(idle)} since the first worker was ready`);
  const node = $("workers");
  node.style.height = `${Math.min(1400, 100 + 26 * Math.max(4, data.n_workers))}px`;
  const kinds = [
    ["in the objective", "c0", (one) => one.trial !== null && one.startup < (one.end - one.begin) / 2],
    ["starting", "c1", (one) => one.trial !== null && one.startup >= (one.end - one.begin) / 2],
    ["idle", "idle", (one) => one.trials === 0],
    ["several short trials", "c2", (one) => one.trials > 1],
  ];
  await draw(node, () => ({
    traces: kinds.map(([label, tone, matches]) => {
      const intervals = data.intervals.filter(matches);
      return {
        type: "bar", orientation: "h", name: label, base: intervals.map((one) => one.begin), x: intervals.map((one) => one.end - one.begin),
        y: intervals.map((one) => one.slot), customdata: intervals.map((one) => one.trial),
        marker: { color: intervals.map((one) => (one.status === "Failed" ? color("bad") : color(tone))),
          opacity: intervals.map((one) => (one.trials > 1 ? 0.25 + (0.75 * one.busy) / (one.end - one.begin) : 1)),
          line: { width: intervals.length > 600 ? 0 : 1, color: color("card") } },
        text: intervals.map((one) => plain(one.trials > 1 ? `${one.trials} trials, ${percent(one.busy / (one.end - one.begin))} in the objective`
          : one.trial === null ? "idle" : `trial ${one.trial}, ${label}${one.status ? `, ${one.status}` : ""}`)),
        textposition: "none", hovertemplate: "%{text}<br>%{base:.2f} s, for %{x:.2f} s<extra></extra>",
      };
    }),
    layout: {
      barmode: "overlay", bargap: 0.25, showlegend: true, legend: { orientation: "h", y: 1.01, yanchor: "bottom" }, margin: { l: 54, r: 14, t: 34, b: 42 },
      xaxis: { title: { text: "seconds since the first worker was ready" }, rangemode: "tozero" },
      yaxis: { title: { text: "worker" }, autorange: "reversed", dtick: Math.ceil(data.n_workers / 16), zeroline: false },
    },
  }), go);
}

async function rungs() {
  const data = await ask(api(name, "/rungs"));
  write($("rungs-note"), data.rungs.length ? "Each dot is a trial at its first report at the level. Filled dots continued." :
    "No trial was stopped or paused.");
  renew($("rungs-rows"), ...data.rungs.map((one) => el("tr", {}, ...[one.level, one.arrived, one.continued].map((cell) =>
    el("td", { class: "number" }, number(cell))))));
  $("rungs").hidden = data.rungs.length === 0;
  if (!data.rungs.length) return;
  const groups = [true, false].map((continued) => ({ x: [], y: [], about: [], continued }));
  data.rungs.forEach((one, column) => one.dots.forEach(([trial, value, continued], place) => {
    const group = groups[continued ? 0 : 1];
    group.x.push(column - 0.3 + (0.6 * (place + 0.5)) / one.dots.length);
    group.y.push(value);
    group.about.push(trial);
  }));
  await draw($("rungs"), () => ({
    traces: groups.map((group) => ({
      x: group.x, y: group.y, customdata: group.about, mode: "markers", name: group.continued ? "continued" : "did not continue",
      marker: { size: 8, symbol: group.continued ? "circle" : "circle-open", color: color(group.continued ? "accent" : "soft") },
      hovertemplate: "trial %{customdata}<br>%{y:.5g}<extra></extra>",
    })),
    layout: {
      showlegend: true, legend: { orientation: "h", y: 1.08 },
      xaxis: { title: { text: plain(data.resource) }, tickvals: data.rungs.map((_, place) => place), ticktext: data.rungs.map((one) => number(one.level)) },
      yaxis: { title: { text: plain(data.metric) }, ...range(data.scale, data.scale.log) },
    },
  }), go);
}

const table = { sort: "trial", descending: false, offset: 0 };

async function trials() {
  const asked = new URLSearchParams({ ...table, status: $("trials-status").value, text: $("trials-text").value });
  const data = await ask(api(name, `/trials?${asked}`));
  const end = data.offset + data.rows.length;
  write($("trials-note"), data.found ? `${number(data.offset + 1)} to ${number(end)} of ${number(data.found)}` : "none");
  $("trials-before").disabled = data.offset === 0;
  $("trials-after").disabled = end >= data.found;
  table.limit = data.limit;
  const metric = last?.metric ?? data.metrics[0];
  const columns = [
    ["trial", "trial", (one) => el("a", { href: page(name, one.trial) }, `${one.trial}`)],
    ["status", "status", (one) => pill(one.status)],
    ["best", `best ${metric ?? ""}`, (one) => number(one.best)],
    ["reports", "reports", (one) => number(one.reports)],
    ["seconds", "time", (one) => seconds(one.seconds)],
    ...data.config.map((key) => [`config.${key}`, key, (one) => (key in one.config ? shown(one.config[key]) : "")]),
    ...data.metrics.filter((key) => key !== metric).map((key) => [`last.${key}`, `last ${key}`, (one) => shown(one.last[key] ?? "")]),
    ["reason", "failure", (one) => (one.reason ? el("span", { class: "clip", title: one.reason }, one.reason) : "")],
  ];
  const focused = document.activeElement.dataset?.key;
  renew($("trials-head"), ...columns.map(([key, label]) => el("th",
    { "aria-sort": table.sort === key ? (table.descending ? "descending" : "ascending") : null },
    el("button", { class: "link", "data-key": key, click: () => sortBy(key) },
      `${label}${table.sort === key ? (table.descending ? " \u25bc" : " \u25b2") : ""}`))));
  if (focused !== undefined && document.activeElement === document.body) {  // the button of the focused column was replaced
    [...$("trials-head").querySelectorAll("button")].find((button) => button.dataset.key === focused)?.focus();
  }
  renew($("trials-rows"), ...data.rows.map((one) => el("tr", {}, ...columns.map(([, , cell]) => el("td", {}, cell(one))))));
}

function sortBy(key) {
  table.descending = table.sort === key ? !table.descending : key === "best" && last?.mode === "max";
  table.sort = key;
  table.offset = 0;
  refresh();
}

async function hyperparameters() {
  const data = await ask(api(name, "/hyperparameters"));
  await Promise.all([parallel(data), slices(data), contour(data), importance()]);
}

async function parallel(data) {
  write($("parallel-note"), data.lines.length === 0 ? "no result yet" : "Each line is a trial. Better trials have stronger lines. "
    + (data.lines.length < data.num_trials ? `${number(data.lines.length)} of ${number(data.num_trials)} trials are drawn: the best and an even sample of the others.` : ""));
  const shades = 6, groups = Array.from({ length: shades }, () => ({ x: [], y: [], about: [] }));
  for (const line of data.lines) {
    const group = groups[Math.min(shades - 1, Math.floor((1 - line.rank) ** 2 * shades))];
    data.axes.forEach((_, index) => { group.x.push(index); group.y.push(line.positions[index]); group.about.push([line.trial, line.value]); });
    group.x.push(null); group.y.push(null); group.about.push(null);
  }
  await draw($("parallel"), () => ({
    traces: groups.map((group, shade) => ({
      x: group.x, y: group.y, customdata: group.about, mode: "lines+markers", marker: { size: 3 }, connectgaps: false,
      opacity: 0.12 + (0.88 * shade) / (shades - 1), line: { width: shade === shades - 1 ? 2.2 : 1, color: color(shade >= shades - 2 ? "accent" : "soft") },
      hovertemplate: `trial %{customdata[0]}<br>${plain(data.metric)} %{customdata[1]:.5g}<extra></extra>`,
    })),
    layout: {
      margin: { l: 50, r: 30, t: 8, b: 60 },  // half of the first name
      xaxis: { tickvals: data.axes.map((_, index) => index), ticktext: data.axes.map((one) => plain(one.name)), range: [-0.05, data.axes.length - 0.6],
        ticklabeloverflow: "allow" },
      yaxis: { visible: false, range: [-0.04, 1.04] },
      annotations: data.axes.flatMap((one, index) => one.ticks.map(([place, text]) => ({
        x: index, y: place, text: plain(text), showarrow: false, xanchor: "left", xshift: 5, font: { size: 11, color: color("soft") },
        bgcolor: color("card"), opacity: 0.85,
      }))),
    },
  }), go);
}

const axisName = (letter, index) => `${letter}axis${index ? index + 1 : ""}`;
const ticks = (axis) => ({ zeroline: false, range: [-0.05, 1.05], tickvals: axis.ticks.map(([place]) => place), ticktext: axis.ticks.map(([, text]) => plain(text)) });

async function slices(data) {
  const columns = Math.min(data.axes.length, innerWidth < 640 ? 1 : 3), rows = Math.ceil(data.axes.length / Math.max(1, columns));
  $("slices-card").hidden = data.lines.length === 0 || columns === 0;
  if ($("slices-card").hidden) return;
  $("slices").style.height = `${40 + 230 * rows}px`;
  await draw($("slices"), () => ({
    traces: data.axes.map((_, index) => ({
      x: data.lines.map((line) => line.positions[index]), y: data.lines.map((line) => line.value), customdata: data.lines.map((line) => line.trial),
      xaxis: `x${index + 1}`, yaxis: `y${index + 1}`, mode: "markers", marker: { size: 5, opacity: 0.7, color: color("accent") },
      hovertemplate: `trial %{customdata}<br>${plain(data.metric)} %{y:.5g}<extra></extra>` })),
    layout: {
      grid: { rows, columns, pattern: "independent", ygap: 0.35 },
      ...Object.fromEntries(data.axes.flatMap((axis, index) => [
        [axisName("x", index), { title: { text: plain(axis.name) }, ...ticks(axis) }],
        [axisName("y", index), range(data.scale, data.scale.log)]])),
    },
  }), go);
}

/** Returns a grid on the unit square with means of the values of points, weighted by a Gaussian of the distance. */
function smoothed(points, size) {
  const places = Array.from({ length: size }, (_, index) => index / (size - 1));
  return [places, places.map((y) => places.map((x) => {
    let sum = 0, weights = 0;
    for (const point of points) {
      const weight = Math.exp(-60 * ((point.x - x) ** 2 + (point.y - y) ** 2)) + 1e-12;
      sum += weight * point.z;
      weights += weight;
    }
    return sum / weights;
  }))];
}

async function contour(data) {
  $("contour-card").hidden = data.axes.length < 2 || data.lines.length < 10;
  if ($("contour-card").hidden) return;
  const [x, y] = choices("contour", data.axes.map((axis) => axis.name));
  const isLog = data.scale.log, limited = (value) => Math.min(data.scale.high, Math.max(data.scale.low, value));
  const height = (value) => (isLog ? Math.log10(limited(value)) : limited(value));
  const points = data.lines.filter((line) => line.positions[x] !== null && line.positions[y] !== null)
    .map((line) => ({ x: line.positions[x], y: line.positions[y], z: height(line.value), line }));
  const [places, z] = smoothed(points, 40);
  await draw($("contour"), () => ({
    traces: [
      { type: "contour", x: places, y: places, z, colorscale: "Viridis", reversescale: data.mode === "max", contours: { coloring: "heatmap" }, line: { width: 0.5 },
        hoverinfo: "skip", colorbar: { title: { text: plain(isLog ? `log10 ${data.metric}` : data.metric), side: "right" }, thickness: 12, outlinewidth: 0 } },
      { x: points.map((point) => point.x), y: points.map((point) => point.y), customdata: points.map(({ line }) => [line.trial, line.value]), mode: "markers",
        marker: { size: 5, color: color("card"), line: { width: 1, color: color("ink") } }, hovertemplate: "trial %{customdata[0]}<br>%{customdata[1]:.5g}<extra></extra>" }],
    layout: {
      uirevision: `${x} ${y}`,
      xaxis: { title: { text: plain(data.axes[x].name) }, ...ticks(data.axes[x]) }, yaxis: { title: { text: plain(data.axes[y].name) }, ...ticks(data.axes[y]) },
    },
  }), go);
}

/** Fills the two select elements of a chart. Returns the indices of the chosen names. */
function choices(chart, names) {
  return ["x", "y"].map((letter, index) => {
    const node = $(`${chart}-${letter}`);
    if (node.options.length !== names.length) {
      fill(node, ...names.map((text, place) => el("option", { value: place }, text)));
      node.value = String(index);
    }
    return Number(node.value);
  });
}

async function importance() {
  let data;
  try { data = await ask(api(name, "/importance")); } catch (error) {
    write($("importance-note"), error.message);
    return;
  }
  $("importance").hidden = false;
  write($("importance-note"), `How much worse a model predicts ${data.metric} with the value of another trial; ${number(data.num_trials)} trials`
    + (data.num_results > data.num_trials ? `, a sample of ${number(data.num_results)}` : "")
    + (data.num_stopped ? `, ${number(data.num_stopped)} of them stopped or paused early` : "") + `; predicted and actual ranks: correlation ${data.correlation.toFixed(2)}`);
  const bars = [...data.bars].reverse();
  await draw($("importance"), () => ({
    traces: [{ type: "bar", orientation: "h", x: bars.map((one) => one.mean), y: bars.map((one) => plain(one.name)),
      error_x: { array: bars.map((one) => one.deviation), color: color("soft") }, marker: { color: color("accent") }, hovertemplate: "%{y}: %{x:.3f}<extra></extra>" }],
    layout: { margin: { l: 110, r: 14, t: 8, b: 36 } },
  }));
}

async function front() {
  const data = await ask(api(name, "/front"));
  const names = data.objectives.map(([metric, mode]) => `${metric} (${mode})`);
  const [x, y] = choices("front", names);
  write($("front-note"), `${number(data.front.length)} of ${number(data.num_reports)} reports are not dominated by another report`);
  const dots = (list, label, marker) => ({ x: list.map((one) => one[1][x]), y: list.map((one) => one[1][y]), customdata: list.map((one) => one[0]),
    mode: "markers", name: label, marker, hovertemplate: "trial %{customdata}<br>%{x:.5g}, %{y:.5g}<extra></extra>" });
  await draw($("front"), () => ({
    traces: [dots(data.dominated, "other reports", { size: 5, color: color("idle") }), dots(data.front, "Pareto front", { size: 9, color: color("accent") })],
    layout: { showlegend: true, legend: { orientation: "h", y: 1.08 }, xaxis: { title: { text: plain(names[x]) } }, yaxis: { title: { text: plain(names[y]) } } },
  }), go);
}

// -- tabs -------------------------------------------------------------------------------------------------------------

const views = { curves, workers, rungs, trials, hyperparameters, front };
let chosen = "curves";
const refresh = paced(() => views[chosen]());

/** Scrolls to the selected tab, because not all tabs fit on a phone. */
function showTab() {
  $("tabs").scrollLeft = Math.max(0, $(`tab-${chosen}`).offsetLeft - 40);
}

function choose(view) {
  chosen = view in views ? view : "curves";
  for (const one of Object.keys(views)) {
    const isChosen = one === chosen;
    $(`tab-${one}`).setAttribute("aria-selected", String(isChosen));
    $(`tab-${one}`).tabIndex = isChosen ? 0 : -1;
    $(`panel-${one}`).hidden = !isChosen;
  }
  showTab();
  history.replaceState(null, "", chosen === "curves" ? location.pathname : `#${chosen}`);
  views[chosen]().catch((error) => { if (error.status !== 409) say(error.message, true); });
}

fill($("tabs"), ...Object.keys(views).map((view) => el("button", { role: "tab", id: `tab-${view}`, "aria-controls": `panel-${view}`,
  hidden: view === "front", click: () => choose(view) }, view[0].toUpperCase() + view.slice(1))));
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const visible = Object.keys(views).filter((view) => !$(`tab-${view}`).hidden);
  choose(visible[(visible.indexOf(chosen) + step + visible.length) % visible.length]);
  $(`tab-${chosen}`).focus();
});
$("over").addEventListener("change", () => { isOverChosen = true; });
for (const id of ["over", "front-x", "front-y", "contour-x", "contour-y"]) $(id).addEventListener("change", refresh);
$("log").addEventListener("change", () => { isLogChosen = true; refresh(); });
for (const id of ["trials-text", "trials-status"]) $(id).addEventListener("input", () => { table.offset = 0; refresh(); });
$("trials-before").addEventListener("click", () => { table.offset = Math.max(0, table.offset - table.limit); refresh(); });
$("trials-after").addEventListener("click", () => { table.offset += table.limit; refresh(); });

// -- commands ---------------------------------------------------------------------------------------------------------

$("end").addEventListener("click", () => confirmCommand("End the search?",
  `${last?.trials.InProgress ?? 0} running trials are stopped. All results are kept, and the search can be resumed.`, "End it", name, "stop"));
$("set-workers").addEventListener("click", () => command(name, "workers", $("n-workers").valueAsNumber));
$("enqueue").addEventListener("click", () => {
  $("new-config").value = JSON.stringify(last?.best?.config ?? {}, null, 2);
  $("new").showModal();
});
$("new-no").addEventListener("click", () => $("new").close());
$("new-yes").addEventListener("click", async () => {
  let config;
  try { config = JSON.parse($("new-config").value); } catch (error) { say(`this is not JSON: ${error.message}`, true); return; }
  if (await command(name, "enqueue", config)) $("new").close();
});

window.addEventListener("hashchange", () => choose(location.hash.slice(1)));
let shownSeq = -1;

/** Shows the stored summary first, because reading a long record takes seconds. */
async function begin() {
  try {
    summary(await ask(api(name)));
    last = null;
    await painted();
  } catch (error) {
    write($("name"), name);
    say(error.message, true);
  }
  follow(api(name, "/live"), (data) => {
    summary(data);
    if (data.seq !== shownSeq) { shownSeq = data.seq; refresh(); }
  }, (error) => say(error, true));
  choose(location.hash.slice(1));
  loaded();
}

begin();
