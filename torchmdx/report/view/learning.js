// The page of `torchmdx learn`: rounds, what was selected and why, the map of exploration, time and labels.

const COLOURS = { start: "#8a94a0", explore: "#0072B2", select: "#56B4E9", label: "#E69F00", train: "#009E73" };
const LOG = { type: "log", exponentformat: "none", dtick: "D2" };
const CHOSEN = "#d64545";
const SETTINGS = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

function digits(value, count = 3) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–"
    : Number(value.toPrecision(count)).toLocaleString("en", { maximumSignificantDigits: count });
}

// A plot in a section of its own. layout: what differs from that of all plots.
class Plot {
  constructor(parent, title, traces, layout, text = "") {
    this.section = element("section", parent);
    element("h2", this.section, { textContent: title });
    if (text) element("p", this.section, { className: "faint", textContent: text });
    this.node = element("div", this.section, { className: "parity" });
    this.ready = this.draw(traces, layout);
  }

  draw(traces, layout) {
    return Plotly.react(this.node, traces, {
      font: FONT, margin: { l: 64, r: 20, t: 8, b: 50 }, hovermode: "closest", showlegend: traces.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hoverlabel: { font: { size: 14 }, align: "left" }, ...layout,
    }, SETTINGS);
  }
}

class Learning {
  constructor() {
    const main = document.getElementById("main");
    main.className = "beside";
    this.column = element("div", main, { className: "column" });
    this.rounds = data.rounds;
    this.explored = this.rounds.filter((round) => round.uncertainty !== null && round.number);
    this.plots = [this.byRound()];
    this.maps = data.maps.map((map, number) => ({ map, number })).filter(({ map }) => map && map.explored.length);
    if (this.maps.length) this.plots.push(this.mapPlot());
    if (data.frames.some((frame) => frame.force_error !== null && frame.uncertainty !== undefined)) this.plots.push(this.calibration());
    this.plots.push(this.spent());
    if (data.frames.length) this.side(main);
    this.table(main);
  }

  byRound() {
    const line = (name, key, colour, dash = "solid", unit = "eV/Å") => {
      const kept = this.rounds.filter((round) => round[key] !== null && round[key] !== undefined);
      return {
        type: "scatter", mode: "lines+markers", name, x: kept.map((round) => round.number), y: kept.map((round) => round[key]),
        line: { color: colour, dash }, marker: { color: colour, size: 8 }, hovertemplate: `round %{x}: ${name} %{y:.3g} ${unit}<extra></extra>`,
      };
    };
    const unit = data.unit === "eV/Å" ? data.unit : `uncertainty / ${data.unit}, errors / eV/Å`;
    const traces = [
      line("uncertainty of 95 % of the frames", "uncertainty", "#0072B2", "solid", data.unit), line("median uncertainty", "median", "#56B4E9", "solid", data.unit),
      line("force error on fresh labels (RMSE)", "force_rmse", CHOSEN), line("of frames drawn at random", "random_force_rmse", "#CC79A7", "dash"),
    ].filter((trace) => trace.x.length);
    const shapes = [["uncertainty", "#0072B2"], ["error", CHOSEN]].filter(([name]) => data.targets[name] !== null).map(([name, color]) => (
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: data.targets[name], y1: data.targets[name], line: { color, width: 1, dash: "dot" } }));
    return new Plot(this.column, "Uncertainty and error by round", traces, {
      xaxis: axis("round", { dtick: this.rounds.length > 15 ? null : 1 }), yaxis: axis(unit, LOG), shapes,
    }, "Errors are those of the potential before it was trained on these labels. Selected frames are the uncertain ones, whose error is above the average. Dotted: targets.");
  }

  mapPlot() {
    const plot = new Plot(this.column, "Coverage of the exploration", [], {});
    const controls = element("div", plot.section, { className: "controls" });
    const label = element("label", controls, { textContent: "round " });
    const choice = element("select", label, { id: "map-round" });
    for (const { number } of this.maps) element("option", choice, { value: number, textContent: number });
    choice.value = this.maps[this.maps.length - 1].number;
    const said = element("p", plot.section, { className: "faint" });
    const draw = () => {
      const { map, number } = this.maps.find((one) => one.number === Number(choice.value));
      const [first, second] = [0, 1].map((axisNumber) => (points) => points.map((point) => point[axisNumber]));
      const place = data.frames.map((frame, k) => k).filter((k) => data.frames[k].round === number);
      const known = { x: first(map.labelled), y: second(map.labelled) };
      const captions = map.chosen.map((_, k) => place.find((frame) => data.frames[frame].place === k));
      const round = this.rounds[number];
      said.textContent = `Two principal components of the descriptors, ${digits(100 * map.share)} % of the variance. ${digits(round.explored)} frames explored; `
        + `median distance to the nearest labelled frame before the selection: ${digits(map.novelty)}.`;
      return plot.draw([
        { type: "scatter", mode: "markers", name: "labelled before", ...known, marker: { color: "#b8c2cc", size: 7, symbol: "square" }, hoverinfo: "skip" },
        { type: "scatter", mode: "markers", name: "explored", x: first(map.explored), y: second(map.explored), text: map.uncertainty.map((value) => digits(value)),
          marker: { color: map.uncertainty.map((value) => Math.log10(Math.max(value, 1e-6))), colorscale: "Viridis", size: 5, opacity: 0.8, showscale: true,
            colorbar: { title: { text: `uncertainty<br>log₁₀ ${data.unit}`, font: { size: 11 } }, thickness: 10, len: 0.9 } },
          hovertemplate: `uncertainty %{text} ${data.unit}<extra></extra>` },
        { type: "scatter", mode: "markers", name: "selected", x: first(map.chosen), y: second(map.chosen), customdata: captions,
          text: captions.map((frame) => (frame === undefined ? "" : data.captions[frame])), hovertemplate: "%{text}<extra></extra>",
          marker: { color: "rgba(0,0,0,0)", size: 12, symbol: "circle", line: { color: CHOSEN, width: 2.5 } } },
      ], { xaxis: axis("first component"), yaxis: axis("second component") });
    };
    choice.addEventListener("change", draw);
    plot.ready = plot.ready.then(draw).then(() => this.picks(plot));
    return plot;
  }

  calibration() {
    const kept = data.frames.map((frame, k) => k).filter((k) => data.frames[k].force_error !== null && data.frames[k].uncertainty !== undefined);
    const numbers = [...new Set(kept.map((k) => data.frames[k].round))];
    const traces = numbers.map((number) => {
      const own = kept.filter((k) => data.frames[k].round === number);
      return {
        type: "scatter", mode: "markers", name: `round ${number}`, x: own.map((k) => data.frames[k].uncertainty), y: own.map((k) => data.frames[k].force_error),
        customdata: own, text: own.map((k) => data.captions[k]), marker: { size: 8, opacity: 0.75 }, hovertemplate: "%{text}<extra></extra>",
      };
    });
    const values = kept.flatMap((k) => [data.frames[k].uncertainty, data.frames[k].force_error]).filter((value) => value > 0);
    const range = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
    if (data.unit === "eV/Å") traces.unshift({ type: "scatter", mode: "lines", x: range, y: range, line: { color: "#9aa5b1", width: 1 }, hoverinfo: "skip", showlegend: false });
    const plot = new Plot(this.column, "Was the uncertainty right?", traces, {
      xaxis: axis(`uncertainty before the label / ${data.unit}`, LOG),
      yaxis: axis("largest force error / eV/Å", LOG),
    }, `Each selected frame: its uncertainty, and the error that its label has shown.${data.unit === "eV/Å" ? " Line: equal." : ""}`);
    plot.ready = plot.ready.then(() => this.picks(plot));
    return plot;
  }

  spent() {
    const numbers = this.rounds.map((round) => round.number);
    const traces = data.stages.map((stage) => ({
      type: "bar", name: stage, x: numbers, y: this.rounds.map((round) => (round.seconds[stage] ?? 0) / 60), marker: { color: COLOURS[stage] },
      hovertemplate: `round %{x}: ${stage} %{y:.3g} min<extra></extra>`,
    }));
    traces.push({
      type: "scatter", mode: "lines+markers", name: "labels", x: numbers, y: this.rounds.map((round) => round.labels), yaxis: "y2",
      line: { color: "#1f2933", dash: "dot" }, hovertemplate: "%{y} labels after round %{x}<extra></extra>",
    });
    return new Plot(this.column, "Time and labels spent", traces, {
      barmode: "stack", xaxis: axis("round", { dtick: numbers.length > 15 ? null : 1 }), yaxis: axis("time / min"), margin: { l: 64, r: 64, t: 8, b: 50 },
      yaxis2: { ...axis("labels, in all", { showgrid: false, rangemode: "tozero", tickmode: "auto", nticks: 6 }), overlaying: "y", side: "right" },
    });
  }

  table(main) {
    const section = element("section", main, { style: "grid-column: 1 / -1; overflow-x: auto" });
    element("h2", section, { textContent: "Rounds" });
    const table = element("table", section, { id: "rounds" });
    const head = ["round", "uncertainty, 95 %", "median", "force error", "replicas to the end", "mean steps", "explored", "like labelled", "labels", "in all", "time / min"];
    const row = (cells, tag) => {
      const node = element("tr", table);
      for (const text of cells) element(tag, node, { textContent: text });
    };
    row(head, "th");
    for (const one of this.rounds) {
      const time = Object.values(one.seconds).reduce((sum, value) => sum + value, 0) / 60;
      const whole = one.endings ? `${one.endings.whole} of ${one.replicas}` : "–";
      row([one.number, digits(one.uncertainty), digits(one.median), digits(one.force_rmse), whole, digits(one.mean_steps, 4), digits(one.explored, 6),
        digits(one.duplicates, 6), one.new_labels, one.labels, digits(time)], "td");
    }
  }

  side(main) {
    this.frames = new Frames();
    this.panel = element("section", main, { className: "sticky" });
    this.heading = element("h2", this.panel);
    const scene = element("div", this.panel, { className: "scene" });
    this.viewer = new Viewer(element("div", scene, { style: "width:100%;height:100%" }), this.frames.reach(0, 0), [0.45, -1, 0.32]);
    legend(scene, data.elements, Object.keys(data.elements));
    const controls = element("div", this.panel, { className: "controls" });
    element("button", controls, { textContent: "‹", title: "previous frame" }).addEventListener("click", () => this.show(this.shown - 1));
    this.slider = element("input", controls, { type: "range", min: 0, max: data.frames.length - 1, step: 1 });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    element("button", controls, { textContent: "›", title: "next frame" }).addEventListener("click", () => this.show(this.shown + 1));
    this.facts = element("table", this.panel, { id: "why" });
    element("p", this.panel, { className: "faint", textContent: "Click a selected frame in a plot to see it here." });
  }

  picks(plot) {
    plot.node.on("plotly_click", (event) => {
      const frame = event.points[0].customdata;
      if (frame !== undefined && frame !== null) this.show(frame);
    });
  }

  describe(frame) {
    const one = data.frames[frame];
    this.heading.textContent = data.captions[frame];
    this.facts.replaceChildren();
    const why = { start: "labelled before the first round", random: "drawn at random", uncertain: "largest uncertainty times distance" }[one.why];
    const rows = [
      ["why", why], ["uncertainty", one.uncertainty === undefined ? "–" : `${digits(one.uncertainty)} ${data.unit}`],
      ["distance to labelled and selected frames", one.distance === undefined ? "–" : digits(one.distance)],
      ["largest force error, before training on it", one.force_error === null ? "–" : `${digits(one.force_error)} eV/Å`],
      ["energy error", one.energy_error === null ? "–" : `${digits(1e3 * one.energy_error)} meV/atom`],
    ];
    for (const cells of rows) {
      const row = element("tr", this.facts);
      for (const text of cells) element("td", row, { textContent: text });
    }
  }

  drawLatest = latest((frame) => this.draw(frame));

  show(frame) {
    return this.drawLatest(Math.max(0, Math.min(data.frames.length - 1, frame)));
  }

  async draw(frame) {
    this.shown = frame;
    this.slider.value = frame;
    this.describe(frame);
    this.viewer.reach = this.frames.reach(frame, frame);
    const drawn = await this.viewer.drawFrame(this.frames, frame);
    // For tests: what is drawn.
    Object.assign(document.documentElement.dataset, {
      frames: data.frames.length, frame, atoms: drawn.atoms, bonds: drawn.bonds, plots: this.plots.length, rounds: this.rounds.length,
    });
  }
}

async function start() {
  document.getElementById("summary").textContent = data.summary;
  for (const note of data.notes) element("p", document.getElementById("notes"), { textContent: note });
  const learning = new Learning();
  await Promise.all(learning.plots.map((plot) => plot.ready));
  if (data.frames.length) await learning.show(data.frames.length - 1);
  document.documentElement.dataset.ready = "yes";
}

start();
