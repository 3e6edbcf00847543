// Draws the page's charts with uPlot from /ops/series.json, in the page's colours, and tells the same as tables.
(() => {
  "use strict";
  const holder = document.getElementById("charts");
  if (!holder || !window.uPlot) return;
  const drawn = new Map();
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 6], [1, 2], [10, 2, 2, 2]];
  const COLOURS = ["--soft", "--accent", "--level", "--lose", "--ink", "--win", "--soft", "--accent"];

  const element = (name, parent, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const shown = (value) => value === null || value === undefined ? "–" : value.toPrecision(3);
  const time = (at) => new Date(1000 * at).toISOString().slice(0, 16).replace("T", " ");

  const table = (details, chart, at) => {
    if (chart.lines.every((line) => line.values.every((value) => !value))) {
      element("p", details, "Nothing in this window.");
      return;
    }
    const body = element("table", details);
    body.setAttribute("aria-label", chart.title);
    const head = element("tr", element("thead", body));
    for (const name of ["UTC", ...chart.lines.map((line) => line.label)]) element("th", head, name).scope = "col";
    const rows = element("tbody", body);
    at.forEach((moment, index) => {
      if (chart.lines.every((line) => line.values[index] === null || line.values[index] === 0)) return;
      const row = element("tr", rows);
      element("th", row, time(moment)).scope = "row";
      for (const line of chart.lines) {
        const cell = element("td", row, shown(line.values[index]));
        cell.dataset.label = line.label;
      }
    });
  };

  const place = (chart) => {
    const figure = element("figure", holder);
    figure.dataset.chart = chart.id;
    element("figcaption", figure, chart.unit ? `${chart.title}, ${chart.unit}` : chart.title);
    const at = element("div", figure);
    at.setAttribute("role", "img");
    at.setAttribute("aria-label", `${chart.title} over time; the same as a table below`);
    const details = element("details", figure);
    element("summary", details, "as a table");
    return { at, details, plot: null };
  };

  const clock = (_, ticks) => {
    const days = ticks.length > 1 && ticks[1] - ticks[0] >= 86400;
    return ticks.map((tick, index) => {
      const [day, hour] = time(tick).split(" ");
      return days ? day.slice(5) : index === 0 || hour === "00:00" ? `${hour}\n${day.slice(5)}` : hour;
    });
  };

  const options = (chart, width) => ({
    width, height: 190, ms: 1e-3,
    tzDate: (at) => uPlot.tzDate(new Date(1000 * at), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [{ values: clock }, {}].map((axis) => ({
      ...axis, stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") },
    })),
    series: [{ label: "UTC" }, ...chart.lines.map((line, index) => ({
      label: line.label, stroke: css(COLOURS[index % COLOURS.length]), dash: DASHES[index % DASHES.length], width: 2,
      spanGaps: false, value: (_, value) => shown(value) + (value === null ? "" : chart.unit && ` ${chart.unit}`),
    }))],
  });

  const draw = (data) => {
    for (const chart of data.charts) {
      if (!drawn.has(chart.id)) drawn.set(chart.id, place(chart)); // all of them first: widths are those of the full grid
    }
    for (const chart of data.charts) {
      const kept = drawn.get(chart.id);
      if (kept.plot) kept.plot.destroy();
      kept.plot = new uPlot(options(chart, kept.at.clientWidth), [data.at, ...chart.lines.map((line) => line.values)], kept.at);
      kept.details.querySelector("table, p")?.remove();
      table(kept.details, chart, data.at);
    }
    holder.dataset.drawn = String(Number(holder.dataset.drawn || 0) + 1);
  };

  let latest;
  const load = async () => {
    if (document.hidden) return;
    const answer = await fetch(holder.dataset.series);
    if (answer.ok) draw(latest = await answer.json());
    else holder.dataset.failed = String(answer.status);
  };
  let pending;
  const again = () => { clearTimeout(pending); pending = setTimeout(() => latest && draw(latest), 150); };
  window.addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  load();
  setInterval(load, 30000);
})();
