"use strict";
// Draws the charts of the report. Tables and texts of the page work without this script.
(() => {
  const page = JSON.parse(document.getElementById("records").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { axis: "rounds", spread: "std", logX: false, hidden: new Set() };
  const charts = [];

  // Columns are arrays, or run-length encoded: {n: [1, 999], v: [0, 42]}.
  const unpacked = (column) =>
    Array.isArray(column) ? column : column.v.flatMap((v, i) => Array(column.n[i]).fill(v));
  for (const run of page.runs) {
    for (const name in run.columns) run.columns[name] = unpacked(run.columns[name]);
    run.axes = axesOf(run);
  }

  function axesOf(run) {
    const c = run.columns;
    const total = (values) => { let sum = 0; return values.map((v) => (sum += v)); };
    const bytes = total(c.bytes_down.map((v, i) => v + c.bytes_up[i]));
    const unit = page.methods[run.method].unit;
    return {
      rounds: c.round,
      models: bytes.map((v) => v / unit),
      bytes,
      gradients: total(c.gradients),
      virtual_seconds: c.virtual_seconds,
      seconds: total(c.seconds),
    };
  }

  // Formatting numbers

  // [least value, unit, divisor]
  const BYTES = [[1e12, "TB", 1e12], [1e9, "GB", 1e9], [1e6, "MB", 1e6], [1e3, "kB", 1e3],
    [0, "B", 1]];
  const COUNTS = [[1e12, "T", 1e12], [1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3],
    [0, "", 1]];
  const TIMES = [[172800, "d", 86400], [7200, "h", 3600], [120, "min", 60], [0, "s", 1]];
  function short(value) {
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-3 && size < 1e6)) return String(+value.toPrecision(4));
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  function withUnit(value, units) {
    const [, unit, size] = units.find(([from]) => Math.abs(value) >= from);
    return `${short(value / size)} ${unit}`.trim();
  }
  function along(axis, value) {
    if (axis === "bytes") return withUnit(value, BYTES);
    if (axis.endsWith("seconds")) return withUnit(value, TIMES);
    return axis === "gradients" ? withUnit(value, COUNTS) : short(value);
  }

  // Curves: the mean over seeds in the rounds that all seeds measured, and its spread

  const finite = (v) => typeof v === "number";
  const TINY = 1e-30; // smaller values count as zero on a log scale
  const DECADES = 1e-20; // smallest value shown on a log scale, as a share of the largest
  function curvesOf(method, name, logY) {
    const runs = page.runs.filter((run) => run.method === method && run.columns[name]);
    const fits = (x, y) => finite(y) && !(logY && y < TINY) && !(state.logX && x < TINY);
    if (runs.length < 2 || state.spread === "seeds") {
      return runs.map((run) => {
        const x = [], y = [];
        run.columns[name].forEach((v, i) => {
          const at = run.axes[state.axis][i];
          if (fits(at, v)) { x.push(at); y.push(v); }
        });
        return { x, y, seed: runs.length > 1 ? run.seed : null };
      });
    }
    const places = runs.map((run) => new Map(run.columns.round.map((round, i) => [round, i])));
    const curve = { x: [], y: [], low: [], high: [], seed: null };
    for (const round of runs[0].columns.round) {
      const at = places.map((place) => place.get(round));
      if (at.some((i) => i === undefined)) continue;
      const values = runs.map((run, k) => run.columns[name][at[k]]);
      if (!values.every(finite)) continue;
      const mean = values.reduce((a, b) => a + b) / values.length;
      const x = runs.reduce((sum, run, k) => sum + run.axes[state.axis][at[k]], 0) / runs.length;
      if (!fits(x, mean)) continue;
      const std = Math.sqrt(values.reduce((s, v) => s + (v - mean) ** 2, 0) / (values.length - 1));
      let [low, high] = state.spread === "std"
        ? [mean - std, mean + std] : [Math.min(...values), Math.max(...values)];
      if (logY && low < TINY) low = mean; // a log scale cannot show a band below zero
      curve.x.push(x); curve.y.push(mean); curve.low.push(low); curve.high.push(high);
    }
    if (state.spread === "none") delete curve.low;
    return [curve];
  }

  // Charts

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (method) => page.methods[method][dark.matches ? "dark" : "light"];

  const DASHES = [undefined, [8, 4], [8, 3, 2, 3], [2, 3]]; // as .dash-0 to .dash-3 of page.css

  class Chart {
    constructor(figure) {
      this.place = figure.querySelector(".plot");
      this.name = figure.dataset.name;
      this.log = figure.dataset.log === "true";
      this.stale = true;
      const box = figure.querySelector("input[type=checkbox]");
      if (box) {
        box.checked = this.log;
        box.addEventListener("change", () => { this.log = box.checked; this.draw(); });
      }
      const choice = figure.querySelector("select");
      if (choice) {
        choice.value = this.name;
        choice.addEventListener("change", () => {
          this.name = choice.value;
          this.log = !page.linear.includes(this.name);
          if (box) box.checked = this.log;
          this.draw();
        });
      }
      new IntersectionObserver((seen) => {
        this.visible = seen.at(-1).isIntersecting;
        if (this.visible && this.stale) this.draw();
      }, { rootMargin: "200px" }).observe(figure);
      new ResizeObserver(() => {
        if (this.plot && this.place.clientWidth !== this.plot.width)
          this.plot.setSize({ width: this.place.clientWidth, height: this.place.clientHeight });
      }).observe(this.place);
    }

    update() { this.stale = true; if (this.visible) this.draw(); }

    // Draw with new records; a part of the x-axis that was zoomed in stays as it is.
    grow() {
      const x = this.plot?.scales.x, data = this.plot?.data[0];
      const zoomed = x && (x.min > data[0] || x.max < data.at(-1)) ? { min: x.min, max: x.max } : null;
      this.update();
      if (zoomed && this.plot) this.plot.setScale("x", zoomed);
    }

    draw() {
      this.stale = false;
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.place.replaceChildren();
      const tables = [], series = [{}], bands = [];
      // Curves with gaps come last, so that two equal curves of different styles are both seen.
      const order = page.methods.map((_, m) => m);
      order.sort((a, b) => page.methods[a].dash - page.methods[b].dash || a - b);
      order.forEach((m) => {
        const method = page.methods[m];
        if (state.hidden.has(m)) return;
        for (const curve of curvesOf(m, this.name, this.log)) {
          if (!curve.x.length) continue;
          const stroke = colour(m);
          const at = series.length;
          const dot = curve.x.length === 1;
          series.push({
            label: method.label, method: m, seed: curve.seed, stroke, scale: "y", spanGaps: true,
            width: curve.seed === null ? 2 : 1, dash: DASHES[method.dash],
            points: { show: dot, size: 7, fill: stroke }, band: curve.low ? [at + 1, at + 2] : null,
          });
          const table = [curve.x, curve.y];
          if (curve.low) {
            for (const _ of "ab") series.push({
              band: true, edge: true, stroke: "transparent", width: 0, spanGaps: true,
              scale: "y", points: { show: false },
            });
            bands.push({ series: [at + 2, at + 1], fill: stroke + "2e" });
            table.push(curve.low, curve.high);
          }
          tables.push(table);
        }
      });
      if (!tables.length) {
        const note = document.createElement("p");
        note.className = "empty";
        note.textContent = state.hidden.size ? "Nothing to show: all methods are hidden."
          : "No values to show on this scale.";
        this.place.append(note);
        return;
      }
      const ink = css("--soft"), grid = { stroke: css("--grid"), width: 1 };
      const tip = document.createElement("div");
      tip.className = "tip";
      const font = "12px system-ui, sans-serif";
      const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font, labelFont: font };
      this.plot = new uPlot({
        width: this.place.clientWidth,
        height: this.place.clientHeight,
        padding: [8, 12, 0, 0],
        scales: {
          x: { time: false, ...(state.logX ? { distr: 3, range: logRange } : {}) },
          y: this.log ? { distr: 3, range: logRange } : {},
        },
        axes: [
          { ...axis, label: page.costs[state.axis], labelSize: 18, size: 30, space: 70, ...(state.logX ? LOG : {}),
            values: (u, at) => at.map((v) => (v === null ? "" : along(state.axis, v))) },
          { ...axis, size: 58, space: 36, ...(this.log ? LOG : {}),
            values: (u, at) => at.map((v) => (v === null ? "" : short(v))) },
        ],
        series, bands,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, dataIdx: nearest, drag: { x: true, y: false } },
        hooks: {
          ready: [(u) => u.over.append(tip)],
          setCursor: [(u) => this.hover(u, tip)],
        },
      }, uPlot.join(tables), this.place);
      this.plot.over.setAttribute("role", "img");
      this.plot.over.setAttribute("aria-label",
        `${page.names[this.name]} against ${page.costs[state.axis]}; the tables have the numbers`);
    }

    hover(u, tip) {
      const { left, top, idxs } = u.cursor;
      if (left === undefined || left < 0) { tip.style.display = "none"; return; }
      const here = u.posToVal(left, "x");
      const found = [];
      u.series.forEach((s, i) => {
        if (i === 0 || s.edge || idxs[i] === null || idxs[i] === undefined) return;
        const x = u.data[0][idxs[i]], y = u.data[i][idxs[i]];
        if (y === null || y === undefined) return;
        found.push({ s, i, x, y, low: s.band && u.data[s.band[0]][idxs[i]],
          high: s.band && u.data[s.band[1]][idxs[i]] });
      });
      found.sort((a, b) => b.y - a.y);
      const at = document.createElement("div");
      at.className = "at";
      const nearestX = found.length
        ? found.reduce((a, b) => (Math.abs(b.x - here) < Math.abs(a.x - here) ? b : a)).x : here;
      at.textContent = `${page.costs[state.axis]}: ${along(state.axis, nearestX)}`;
      tip.replaceChildren(at, ...found.slice(0, 16).map(({ s, y, low, high }) => {
        const row = document.createElement("div");
        row.className = "row";
        const words = s.seed === null ? s.label : `${s.label}, seed ${s.seed}`;
        const range = s.band ? ` (${short(low)} … ${short(high)})` : "";
        row.append(line(s.method), text(words), text(short(y) + range));
        return row;
      }));
      tip.style.display = found.length ? "block" : "none";
      const width = tip.offsetWidth, room = u.over.clientWidth;
      const x = left + 14 + width > room ? left - 14 - width : left + 14;
      tip.style.left = `${Math.max(Math.min(x, room - width), -50)}px`;
      tip.style.top = `${Math.max(0, Math.min(top + 8, u.over.clientHeight - tip.offsetHeight))}px`;
    }
  }

  // Logarithmic scales with their own marks: uPlot's loop over marks never ends for some ranges.
  function logRange(u, min, max) {
    if (!(min > 0)) return [1, 10];
    const low = Math.max(min, max * DECADES);
    const room = Math.max(1.1, Math.sqrt((3 * low) / max)); // wide enough to contain a mark of 1, 2 or 5
    return [low / room, max * room];
  }
  function logMarks(u, axis, min, max) {
    const [first, last] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
    const factors = last - first > 6 ? [1] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const found = [];
    for (let power = first; power <= last; power++)
      for (const factor of factors) found.push(Number(`${factor}e${power}`));
    return found.filter((value) => value >= min && value <= max);
  }
  function logLabels(u, marks) { // label 1, 2 and 5 of few decades, or every n-th power of ten
    const decades = Math.log10(marks.at(-1) / marks[0]);
    const every = Math.ceil(decades / 7);
    return marks.map((value) => {
      const [factor, power] = value.toExponential().split("e");
      if (decades < 2.5) return ["1", "2", "5"].includes(factor) ? value : null;
      return factor === "1" && Number(power) % every === 0 ? value : null;
    });
  }
  const LOG = { splits: logMarks, filter: logLabels };

  // Every curve has its own x: the nearest point of the common x may be missing in a curve.
  function nearest(u, i, at) {
    const values = u.data[i], x = u.data[0];
    if (finite(values[at])) return at;
    let left = at, right = at;
    while (left >= 0 && !finite(values[left])) left--;
    while (right < values.length && !finite(values[right])) right++;
    const there = [left, right].filter((k) => k >= 0 && k < values.length);
    if (!there.length) return null;
    const away = (k) => Math.abs(u.valToPos(x[k], "x") - u.valToPos(x[at], "x"));
    const found = there.reduce((a, b) => (away(b) < away(a) ? b : a));
    return away(found) > 25 ? null : found; // more than 25 pixels away: the curve has no value here
  }

  function text(words) {
    const span = document.createElement("span");
    span.textContent = words;
    return span;
  }
  function line(method) {
    const span = document.createElement("span");
    span.className = `line dash-${page.methods[method].dash}`;
    span.style.color = colour(method);
    return span;
  }

  // Controls

  const redraw = () => charts.forEach((chart) => chart.update());
  function legends() {
    for (const place of document.querySelectorAll(".legend")) {
      const focused = [...place.children].indexOf(document.activeElement);
      place.replaceChildren(...page.methods.map((method, m) => {
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.method = m;
        button.setAttribute("aria-pressed", String(!state.hidden.has(m)));
        button.title = "Click: show or hide. Shift-click: show only this method, or all.";
        button.append(line(m), text(method.label));
        if (method.state) {
          const state = text(method.state);
          state.className = `status ${method.state}`;
          button.append(state);
        }
        button.addEventListener("click", (event) => toggle(m, event.shiftKey));
        return button;
      }));
      if (focused >= 0) place.children[focused].focus();
    }
    for (const swatch of document.querySelectorAll(".swatch[data-method]"))
      swatch.style.color = colour(+swatch.dataset.method);
  }
  function toggle(m, alone) {
    if (alone) {
      const others = page.methods.map((_, i) => i).filter((i) => i !== m);
      const only = others.every((i) => state.hidden.has(i)) && !state.hidden.has(m);
      state.hidden = new Set(only ? [] : others);
    } else if (!state.hidden.delete(m)) state.hidden.add(m);
    legends();
    redraw();
  }
  for (const input of document.querySelectorAll("input[name=axis]"))
    input.addEventListener("change", () => { state.axis = input.value; redraw(); });
  const logX = document.getElementById("log-x");
  logX?.addEventListener("change", () => { state.logX = logX.checked; redraw(); });
  const spread = document.getElementById("spread");
  spread?.addEventListener("change", () => { state.spread = spread.value; redraw(); });
  for (const input of document.querySelectorAll("input[name=cost]"))
    input.addEventListener("change", () => {
      for (const table of document.querySelectorAll("[data-cost]"))
        table.hidden = table.dataset.cost !== input.value;
    });

  // New records of a live page

  function append(pieces) {
    for (const { method, seed, columns } of pieces) {
      let run = page.runs.find((each) => each.method === method && each.seed === seed);
      if (!run) page.runs.push(run = { method, seed, columns: {} });
      const before = run.columns.round?.length ?? 0, more = unpacked(columns.round).length;
      for (const name of new Set([...Object.keys(run.columns), ...Object.keys(columns)])) {
        const values = run.columns[name] ?? Array(before).fill(null);
        const added = columns[name] ? unpacked(columns[name]) : Array(more).fill(null);
        run.columns[name] = values.concat(added);
      }
      run.axes = axesOf(run);
    }
    if (pieces.length) charts.forEach((chart) => chart.grow());
  }

  // All records as CSV

  function csv() {
    const names = [...new Set(page.runs.flatMap((run) => Object.keys(run.columns)))];
    const cell = (v) => {
      const words = v === null || v === undefined ? "" : String(v);
      return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
    };
    const lines = [["method", "seed", ...names]];
    for (const run of page.runs)
      run.columns.round.forEach((_, i) => lines.push([
        page.methods[run.method].label, run.seed, ...names.map((name) => run.columns[name]?.[i]),
      ]));
    return lines.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }
  document.getElementById("all-records")?.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = "records.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  legends();
  for (const figure of document.querySelectorAll("figure[data-name]"))
    charts.push(new Chart(figure));
  dark.addEventListener("change", () => { legends(); redraw(); });
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.stale && chart.draw()));
  window.report = { charts, state, csv, append, page, legends }; // for live.js, the console and tests
})();
