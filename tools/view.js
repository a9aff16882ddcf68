// The lists in the filters come from the data; "" means any.
const FILTERS = {
  phase: { any: "all phases", of: (e) => String(e.phase), show: (v) => "phase " + v },
  policy: { any: "all policies", of: (e) => e.policy, show: (v) => v || "unnamed" },
  site: { any: "all sites", of: (e) => e.site, show: (v) => v },
  outcome: { any: "any outcome", of: (e) => (outcome(e) ? "success" : "failure"), show: (v) => v },
  judge: { any: "any judgement", of: (e) => (disagrees(e) ? "judge wrong" : judged(e) === null ? "not judged" : "judge right"), show: (v) => v },
};
const chosen = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, ""]));
let query = "", shown = [], current = null;

function filters() {
  const values = (name) => [...new Set(data.episodes.map(FILTERS[name].of))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  for (const [name, filter] of Object.entries(FILTERS)) {
    const select = make("select", { id: "filter-" + name, "aria-label": name, change: () => { chosen[name] = select.value; refresh(); } },
      make("option", { value: "" }, filter.any), ...values(name).map((v) => make("option", { value: v }, filter.show(v))));
    $("filters").append(select);
  }
  $("filters").append(make("input", { type: "search", placeholder: "search instructions", input: (event) => { query = event.target.value.toLowerCase(); refresh(); } }));
  $("filters").lastChild.style.gridColumn = Object.keys(FILTERS).length % 2 ? "auto" : "1 / -1";
}

function refresh() {
  shown = data.episodes.filter((e) => Object.entries(FILTERS).every(([name, f]) => !chosen[name] || f.of(e) === chosen[name])
    && e.instruction.toLowerCase().includes(query));
  $("count").textContent = `${shown.length} of ${data.episodes.length} episodes here, ${data.total} in the run`;
  $("list").replaceChildren(...shown.map(row));
  strip();
  if (!shown.includes(current)) open(shown[0] ?? null);
}

function row(episode) {
  const where = [episode.site, "phase " + episode.phase, episode.policy, episode.steps.length + " steps"].filter(Boolean).join(" · ");
  return make("button", { class: episode === current ? "on" : "", click: () => open(episode) },
    make("span", { class: "dot " + (outcome(episode) ? "good" : "bad") }), make("span", { class: "what" }, episode.instruction),
    disagrees(episode) ? make("span", { class: "chip warn" }, "judge wrong") : null, make("span", { class: "where" }, where));
}

function open(episode) {
  current = episode;
  [...$("list").children].forEach((button, i) => button.classList.toggle("on", shown[i] === episode));
  $("list").querySelector(".on")?.scrollIntoView({ block: "nearest" });
  $("main").replaceChildren(episode ? detail(episode) : make("p", { class: "nothing" }, "no episode matches these filters"));
  $("main").scrollTop = 0;
}

function detail(episode) {
  const judgement = judged(episode);
  return make("div", { class: "episode" },
    make("h2", {}, episode.instruction),
    make("div", { class: "chips" },
      verdict("environment", success(episode), success(episode) ? "success" : "failure"),
      verdict("judge", judgement, `${judgement ? "success" : "failure"} ${number(episode.judged)}`),
      disagrees(episode) ? make("span", { class: "chip warn" }, "judge wrong") : null,
      ...[episode.site, "phase " + episode.phase, episode.policy, episode.template, episode.split, "seed " + episode.seed, episode.task_id]
        .filter(Boolean).map((text) => make("span", { class: "chip" }, text))),
    make("div", { class: "film" }, film(episode)),
    ...episode.steps.map((s, i) => step(s, i, i < episode.prefix)), ending(episode));
}

// The value along the episode; every dot leads to its step.
function film(episode) {
  const steps = episode.steps, values = steps.map((s) => s.value);
  if (values.every((v) => v === null)) return make("span");
  const width = 1000, x = (i) => 18 + (width - 136) * (steps.length > 1 ? i / (steps.length - 1) : 0), y = (v) => 62 - 50 * Math.max(0, Math.min(1, v));
  const svg = make("svg", { viewBox: `0 0 ${width} 74`, role: "img" }, make("title", {}, "critic's value at each step"));
  for (const level of [0, 0.5, 1]) svg.append(make("line", { x1: 18, x2: width - 112, y1: y(level), y2: y(level), stroke: "var(--line)" }));
  const known = values.flatMap((v, i) => (v === null ? [] : [[x(i), y(v)]]));
  svg.append(make("path", { d: "M" + known.map((p) => p.join(" ")).join("L"), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }));
  values.forEach((v, i) => v !== null && svg.append(make("circle", {
    class: "dot", cx: x(i), cy: y(v), r: 5, fill: "var(--card)", stroke: "var(--accent)", "stroke-width": 2,
    click: () => document.getElementById("step-" + i).scrollIntoView({ behavior: "smooth", block: "start" }),
  }, make("title", {}, `step ${i + 1}: V = ${number(v)}`))));
  svg.append(make("text", { x: width - 96, y: y(1) + 4 }, "V = 1"), make("text", { x: width - 96, y: y(0) + 4 }, "V = 0"));
  return svg;
}

// One column a phase: of the chosen policy, else of the episodes that were judged (training's), else of all.
function strip() {
  const judgedOnly = data.groups.some((g) => g.judged);
  const counted = data.groups.filter((g) => (chosen.policy ? g.policy === chosen.policy : g.judged || !judgedOnly));
  const phases = {};
  for (const group of counted) {
    const sum = (phases[group.phase] ??= { episodes: 0, known: 0, successes: 0, judged: 0, judged_successes: 0 });
    for (const name of Object.keys(sum)) sum[name] += group[name];
  }
  $("phases").replaceChildren(...Object.entries(phases).sort((a, b) => a[0] - b[0]).map(([phase, sum]) => {
    const share = (n, of) => (of ? Math.round((100 * n) / of) : 0), truth = share(sum.successes, sum.known), judge = share(sum.judged_successes, sum.judged);
    return make("button", {
      class: phase === chosen.phase ? "on" : "",
      title: `phase ${phase}: ${sum.episodes} episodes, true success ${truth} %` + (sum.judged ? `, judged ${judge} %` : ""),
      click: () => { chosen.phase = chosen.phase === phase ? "" : phase; $("filter-phase").value = chosen.phase; refresh(); },
    }, make("small", {}, sum.known ? String(truth) : "–"),
      make("span", { class: "column" }, make("i", { style: `height:${truth}%` }), sum.judged ? make("b", { style: `bottom:calc(${judge}% - 1px)` }) : null),
      make("small", {}, phase));
  }));
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.metaKey || event.ctrlKey) return;
  const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!move || !shown.length) return;
  event.preventDefault();
  open(shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + move))]);
});
$("name").textContent = data.name;
$("facts").textContent = data.facts;
filters();
refresh();
