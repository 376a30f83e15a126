// Charts. Each stands beside a table with the same figures, so its canvas is one image to readers.
// Reports have charts of their own (dsforge/explain/chart.py): a file that runs no script and is printed
// needs an SVG that Python drew, a page that is typed into one that fits its width, theme and pointer.
/* global Chart */
import { el } from "./dom.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const palette = () => Array.from({ length: 8 }, (_, place) => style(`--series-${place + 1}`));
const live = new Map(); // name -> its chart and how to draw it again

/** A frame with a canvas for a chart that `draw` makes; the old one of that name is gone. */
function framed(name, label, height, draw) {
  const canvas = el("canvas", { role: "img", aria: { label } });
  const frame = el("div", { className: `chart ${height}` }, canvas);
  const start = () => {
    live.get(name)?.chart?.destroy();
    live.set(name, { chart: draw(canvas), start });
  };
  live.get(name)?.chart?.destroy();
  live.set(name, { chart: null, start });
  requestAnimationFrame(() => canvas.isConnected && start());
  return frame;
}

/** Draw all charts again, in the colours of now. */
export function redraw() {
  for (const { start } of [...live.values()]) start();
}

/** Fit all charts to a page that is printed, or to the screen again. */
export function resize() {
  for (const { chart } of live.values()) chart?.resize();
}

function base(unit) {
  const ink = style("--ink"), grid = style("--line");
  Chart.defaults.font.family = style("--font");
  Chart.defaults.color = ink;
  return {
    responsive: true,
    maintainAspectRatio: false,
    animation: false,
    scales: {
      x: { grid: { color: grid }, ticks: { color: ink }, title: { display: true, text: unit, color: ink } },
      y: { grid: { color: grid }, ticks: { color: ink } },
    },
    plugins: { legend: { position: "bottom", labels: { color: ink, boxWidth: 12, boxHeight: 12 } } },
  };
}

/** Terms stacked to one bar, against a capacity where there is one. */
export function termBar(name, label, rows, { unit, capacity = null, capacityLabel = "" }) {
  const shown = rows.map((row, place) => ({ ...row, place })).filter((row) => row.value > 0); // a term keeps its colour
  return framed(name, label, "short", (canvas) => {
    const options = base(unit);
    const colours = palette();
    const whole = Math.max(shown.reduce((sum, row) => sum + row.value, 0), capacity ?? 0);
    Object.assign(options.scales.x, { stacked: true, min: 0, max: whole > 0 ? whole * 1.02 : 1 });
    options.scales.x.ticks.maxTicksLimit = 9;
    options.scales.x.ticks.callback = (value, place, ticks) => (place === ticks.length - 1 ? "" : value);
    Object.assign(options.scales.y, { stacked: true, display: false });
    options.indexAxis = "y";
    options.layout = { padding: { top: 18 } }; // of the name of the capacity
    options.plugins.tooltip = { callbacks: { title: () => "", label: ({ datasetIndex }) => `${shown[datasetIndex].label}: ${shown[datasetIndex].text}` } };
    const datasets = shown.map((row) => ({
      label: row.label, data: [row.value], backgroundColor: colours[row.place % colours.length], barThickness: 44,
      borderColor: style("--card"), borderWidth: { left: 0, right: 1, top: 0, bottom: 0 }, borderSkipped: false,
    }));
    const plugins = capacity === null ? [] : [mark(capacity, capacityLabel)];
    return new Chart(canvas, { type: "bar", data: { labels: [""], datasets }, options, plugins });
  });
}

/** A vertical line at a value, with its name: how much there is. */
function mark(value, words) {
  return {
    id: "mark",
    afterDatasetsDraw({ ctx, chartArea, scales }) {
      const at = scales.x.getPixelForValue(value);
      ctx.save();
      ctx.strokeStyle = style("--ink");
      ctx.fillStyle = style("--ink");
      ctx.lineWidth = 2;
      ctx.setLineDash([5, 4]);
      ctx.beginPath();
      ctx.moveTo(at, chartArea.top);
      ctx.lineTo(at, chartArea.bottom);
      ctx.stroke();
      ctx.textAlign = at > (chartArea.left + chartArea.right) / 2 ? "right" : "left";
      ctx.font = `12px ${style("--font")}`;
      ctx.fillText(words, at, chartArea.top - 6);
      ctx.restore();
    },
  };
}

/** The Pareto front: accelerators against step time, one dot a plan. */
export function frontChart(points) {
  return framed("front", `Step time against number of GPUs of ${points.length} plans that no other beats`, "tall", (canvas) => {
    const options = base("GPUs");
    const colours = palette();
    Object.assign(options.scales.x, { type: "logarithmic" });
    const counts = [...new Set(points.map((each) => each.gpus))];
    options.scales.x.afterBuildTicks = (axis) => (axis.ticks = counts.map((count) => ({ value: count })));
    options.scales.x.ticks.callback = (count) => String(count);
    options.scales.y = { ...options.scales.y, type: "logarithmic", title: { display: true, text: "step time, s", color: style("--ink") } };
    options.scales.y.ticks.callback = plain;
    options.plugins.tooltip = { callbacks: { label: ({ raw }) => [raw.plan.strategy, `${raw.plan.gpus} GPUs, ${raw.plan.step}, ${raw.plan.free} free`] } };
    const dots = (wanted) => points.filter((each) => each.chosen === wanted).map((each) => ({ x: each.gpus, y: each.step_s, plan: each }));
    const datasets = [
      { label: "the choice on so many GPUs", data: dots(true), backgroundColor: colours[0], borderColor: colours[0], pointRadius: 6, showLine: true, borderWidth: 1.5 },
      { label: "other plans of the front", data: dots(false), backgroundColor: colours[1], pointRadius: 5, pointStyle: "triangle" },
    ];
    datasets[0].data.sort((one, other) => one.x - other.x);
    return new Chart(canvas, { type: "scatter", data: { datasets }, options });
  });
}

/** Labels of a logarithmic axis: 1, 2 and 5 of each power of ten. */
function plain(value) {
  const first = Number(String(value).replace(/[0.]/g, "")[0]);
  const isRound = Math.abs(Math.log10(value / first) - Math.round(Math.log10(value / first))) < 1e-9;
  return isRound && [1, 2, 5].includes(first) ? String(value) : "";
}
