const badge = (run) => make("span", { class: "badge", style: `background:${run.colour}` }, run.letter);
const known = (task) => task.outcomes.filter((o) => o !== null);
const FILTERS = {
  "all tasks": () => true,
  "outcomes differ": (task) => new Set(known(task)).size > 1,
  ...Object.fromEntries(data.runs.map((run, i) => [`${run.letter} alone succeeds`, (task) => task.outcomes[i] && known(task).filter(Boolean).length === 1])),
  "all succeed": (task) => known(task).every(Boolean),
  "none succeeds": (task) => !known(task).some(Boolean),
};
let chosen = "all tasks", query = "", shown = [], current = null;
const pair = [0, 1]; // the runs on the left and on the right

function refresh() {
  shown = [null, ...data.tasks.filter((t) => FILTERS[chosen](t) && (t.instruction + t.id).toLowerCase().includes(query))];
  $("count").textContent = data.kind ? `${shown.length - 1} of ${data.tasks.length} ${data.kind}` : "no two of them were evaluated on the same tasks";
  $("list").replaceChildren(...shown.map((task) => make("button", { click: () => open(task) }, ...(task
    ? [make("span", { class: "dots" }, ...task.outcomes.map(dot)), make("span", { class: "what" }, task.instruction)]
    : [make("span", { class: "all" }, "overview")]))));
  open(shown.includes(current) ? current : null);
}

function dot(outcome, i) {
  const run = data.runs[i], said = outcome === null ? "not played" : outcome ? "success" : "failure";
  return make("span", { class: "dot " + (outcome === null ? "none" : outcome ? "good" : "bad"), title: `${run.letter}: ${said}` });
}

function open(task) {
  current = task;
  [...$("list").children].forEach((button, i) => button.classList.toggle("on", shown[i] === task));
  $("list").querySelector(".on")?.scrollIntoView({ block: "nearest" });
  $("main").replaceChildren(task ? sides(task) : overview());
  $("main").scrollTop = 0;
}

function table(rows, kind = "") {
  const line = (tag) => (row) => make("tr", {}, ...row.map((cell) => make(tag, {}, cell)));
  return make("div", { class: "card scroll" }, make("table", { class: kind }, line("th")(rows[0]), ...rows.slice(1).map(line("td"))));
}

function overview() {
  const about = data.runs.map((run) => make("div", { class: "card about" }, make("b", {}, badge(run), run.name), ...run.facts.map((fact) => make("p", {}, fact))));
  const figures = data.figures.map(([name, picture]) => {
    const image = make("img", { src: picture, alt: name });
    image.addEventListener("click", () => { $("zoom").replaceChildren(make("img", { src: picture, alt: name, class: "plot" })); $("zoom").showModal(); });
    return make("div", { class: "card figure" }, image);
  });
  return make("div", { class: "wide" },
    make("h2", {}, "Runs"), make("div", { class: "columns" }, ...about),
    make("h2", {}, "Success"), table(data.results),
    make("h2", {}, "What differs"), data.flags.length > 1 ? table(data.flags, "flags") : make("p", {}, "No flag and no script."),
    make("h2", {}, "Curves"), make("div", { class: "columns figures" }, ...figures));
}

// The same task in two runs, step beside step.
function sides(task) {
  const episodes = pair.map((run) => task.episodes?.[run] ?? null), steps = episodes.map((e) => e?.steps ?? []);
  const grid = make("div", { class: "pair" }, ...pair.map((run, side) => head(task, run, side)));
  const length = Math.max(...steps.map((s) => s.length)), both = episodes.every(Boolean);
  for (let i = 0, together = both; i <= length; i++) {
    const parted = i < length && steps[0][i]?.action !== steps[1][i]?.action;
    if (together && (parted || i === length)) grid.append(make("div", { class: "parting" }, parted ? "from here on they differ" : "the same actions to the end"));
    together &&= !parted;
    if (i === length) continue;
    grid.append(...steps.map((own, side) => own[i] ? step(own[i], i, i < episodes[side].prefix) : i === own.length && episodes[side] ? ending(episodes[side]) : make("div")));
  }
  grid.append(...episodes.map((e, side) => e === null
    ? make("p", { class: "nothing" }, task.outcomes[pair[side]] === null ? "not played" : "this episode is not in the page: python tools/runs.py --megabytes")
    : steps[side].length === length ? ending(e) : make("div")));
  return make("div", { class: "wide" }, make("h2", {}, task.instruction),
    make("div", { class: "chips" }, ...[task.site, task.id].filter(Boolean).map((text) => make("span", { class: "chip" }, text))), grid);
}

function head(task, number, side) {
  const run = data.runs[number], outcome = task.outcomes[number];
  const name = data.runs.length > 2
    ? make("select", { "aria-label": side ? "right" : "left", change: (event) => { pair[side] = Number(event.target.value); open(task); } },
      ...data.runs.map((other, i) => make("option", { value: i, ...(i === number ? { selected: "" } : {}) }, `${other.letter} ${other.name}`)))
    : make("span", { title: run.name }, run.name);
  return make("div", { class: "head" }, badge(run), name,
    make("span", { class: "chip " + (outcome === null ? "" : outcome ? "good" : "bad") }, outcome === null ? "not played" : outcome ? "success" : "failure"));
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.metaKey || event.ctrlKey) return;
  const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  open(shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + move))]);
});
$("name").textContent = data.name;
$("runs").append(...data.runs.map((run) => make("span", {}, badge(run), run.name)));
$("filters").append(
  make("select", { "aria-label": "outcome", change: (event) => { chosen = event.target.value; refresh(); } }, ...Object.keys(FILTERS).map((name) => make("option", { value: name }, name))),
  make("input", { type: "search", placeholder: "search tasks", input: (event) => { query = event.target.value.toLowerCase(); refresh(); } }));
$("filters").lastChild.style.gridColumn = "auto";
refresh();
