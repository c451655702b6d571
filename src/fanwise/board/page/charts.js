// Drawing with plotly.js, which is loaded after what needs no chart. What users named is escaped: plotly reads a little
// markup in texts.

let loading = null;

/** To be called when all that needs no chart is shown: the browser can do nothing else while it reads plotly.js. */
export function loaded() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js cannot be loaded"));
    document.head.append(script);
  });
  return loading;
}

export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const COLOURS = 10;

const axis = () => ({
  gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), tickcolor: colour("line"),
  automargin: true,
});

const redraws = new Map();

/** Draws, or draws anew with what the reader has zoomed to. `make`: returns traces and layout, of the colours of now. */
export async function draw(node, make, clicked = null) {
  const Plotly = await loaded();
  const { traces, layout } = make();
  const whole = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("ink"), size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 54, r: 14, t: 8, b: 42 }, hovermode: "closest", showlegend: false, uirevision: "same",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    ...layout, xaxis: { ...axis(), ...layout.xaxis }, yaxis: { ...axis(), ...layout.yaxis },
  };
  const isNew = !redraws.has(node);
  redraws.set(node, () => draw(node, make, clicked));
  await Plotly.react(node, traces, whole, { responsive: true, displaylogo: false, displayModeBar: false });
  if (isNew && clicked !== null) {
    node.on("plotly_click", (event) => {
      const found = event.points[0]?.customdata;
      if (found !== null && found !== undefined) clicked(Array.isArray(found) ? found[0] : found);
    });
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((again) => again()));

/** The range of values that the server found worth showing; plotly wants decades of a logarithmic axis. */
export function range(scale, isLog) {
  const log = isLog && scale.low > 0;
  if (isLog && !log) return { type: "log" };
  return log ? { type: "log", range: [Math.log10(scale.low), Math.log10(scale.high)] } : { range: [scale.low, scale.high] };
}
