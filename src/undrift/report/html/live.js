"use strict";
// Keeps a live page up to date: asks its server for new rounds until the runs have ended.
(() => {
  const { page, append, legends } = window.report;
  // A mean over seeds would end where the seed that runs now is.
  const spread = document.getElementById("spread");
  if (spread) spread.value = window.report.state.spread = "seeds";
  const state = document.getElementById("live-state");
  const PAUSE = 500; // milliseconds between two questions
  const ATTEMPTS = 3; // failed questions after which the server counts as gone
  let { next, version } = page.live;
  let failures = 0;

  function show(answer) {
    state.textContent = answer.text;
    answer.runs.forEach((run, i) => {
      const cells = document.querySelectorAll(`[data-run="${i}"] td`);
      cells[1].firstElementChild.textContent = run.status;
      cells[1].firstElementChild.className = `status ${run.status}`;
      run.cells.forEach((words, at) => { cells[2 + at].textContent = words; });
    });
    append(answer.pieces);
    ({ next, version } = answer);
    if (answer.states.some((words, m) => page.methods[m].state !== words)) {
      answer.states.forEach((words, m) => { page.methods[m].state = words; });
      legends();
    }
  }

  async function ask() {
    let answer;
    try {
      const response = await fetch(`state?after=${next}&version=${version}`, { cache: "no-store" });
      if (!response.ok) throw new Error(response.statusText);
      answer = await response.json();
      failures = 0;
    } catch {
      failures += 1;
      if (failures < ATTEMPTS) setTimeout(ask, 2 * PAUSE);
      else state.textContent = `The runs are over or were stopped: this page is no longer updated. ${page.live.advice}`;
      return;
    }
    if (answer.layout !== page.live.layout && !answer.done) { location.reload(); return; } // charts to add
    show(answer);
    if (!answer.done) setTimeout(ask, answer.more ? 0 : PAUSE);
  }
  ask();
})();
