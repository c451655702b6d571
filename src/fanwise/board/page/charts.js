// Charts drawn by plotly.js. Texts of users must be passed through `plain`, because plotly interprets some markup.

let loading = null;

/** Loads plotly.js. Call it after the rest of the page is painted, because parsing the script blocks the page. */
export function loaded() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js cannot be loaded"));
    document.head.append(script);
  });
  return loading;
}

export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const NUM_COLORS = 10;

const axis = () => ({
  gridcolor: color("grid"), linecolor: color("line"), zerolinecolor: color("line"), tickcolor: color("line"),
  automargin: true,
});

const redraws = new Map();

/** Draws a chart, or updates it and keeps the zoom. `make` returns traces and layout in the current colors. */
export async function draw(node, make, clicked = null) {
  const Plotly = await loaded();
  const { traces, layout } = make();
  const whole = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("ink"), size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 54, r: 14, t: 8, b: 42 }, hovermode: "closest", showlegend: false, uirevision: "same",
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } },
    ...Object.fromEntries(Object.entries({ xaxis: {}, yaxis: {}, ...layout })
      .map(([key, value]) => [key, /^[xy]axis/.test(key) ? { ...axis(), ...value } : value])),
  };
  const isNew = !redraws.has(node);
  redraws.set(node, () => draw(node, make, clicked));
  await Plotly.react(node, traces, whole, { responsive: true, displaylogo: false, displayModeBar: false });
  if (isNew && clicked !== null) {
    node.on("plotly_click", (event) => {
      const data = event.points[0]?.customdata;
      if (data !== null && data !== undefined) clicked(Array.isArray(data) ? data[0] : data);
    });
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));

/** Returns the axis options for the limits from the server. plotly expects decades for logarithmic axes. */
export function range(scale, isLog) {
  const log = isLog && scale.low > 0;
  if (isLog && !log) return { type: "log" };
  return log ? { type: "log", range: [Math.log10(scale.low), Math.log10(scale.high)] } : { range: [scale.low, scale.high] };
}
