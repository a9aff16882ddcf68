// What MiniWoB++'s pages are beyond HTML: how an episode begins and ends in one, and what a person sees there that has
// no text. common/page.js says what `gui.kind`, `label`, `ready`, `report` and `start` are.
() => {
  const gui = window.__gui;
  let seed = null, utterance = null;

  // As core.startEpisodeReal() would after a click on START, but on a given seed and without a time limit.
  gui.start = (options) => {
    const focused = document.activeElement;
    if (focused && focused !== document.body) focused.blur();
    core.EP_TIMER = null;  // what genProblem sets off rewards nothing
    if (location.hash) history.replaceState(null, "", location.href.split("#")[0]);
    gui.rewind();
    ({seed} = options);
    Math.seedrandom(seed);
    core.startEpisodeReal();
    clearTimeout(core.EP_TIMER);
    core.EP_TIMER = -1;  // not null: endEpisode still rewards
    clearInterval(core.CD_TIMER);
    const said = core.getUtterance();  // in some tasks with its fields
    utterance = (said.utterance ?? said).replace(/\s+/g, " ").trim();
  };
  gui.utterance = (seed) => {
    gui.start({seed});
    return utterance;
  };
  // Pictures that an action brought: without them an icon has no size, and is not seen. (Without compositing decode()
  // would wait for ever.)
  const loaded = new Set();
  gui.ready = () => Promise.all([...document.querySelectorAll("#area *")].map(async (el) => {
    const url = el.localName === "img" ? el.src : getComputedStyle(el).content.match(/^url\("(.*)"\)/)?.[1];
    if (!url || loaded.has(url)) return;
    await new Promise((done) => Object.assign(new Image(), {onload: done, onerror: done, src: url}));
    loaded.add(url);
  }));
  gui.report = () => window.core && {seed, utterance, done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL};

  // The package's own observation (core.getDOMInfo) leaves these out, too. The instruction is shown where it holds what
  // its text does not say, a colour or an icon.
  const HIDDEN = new Set(["reward-display", "sync-task-cover", "click-canvas"]);
  const PICTURE = ".ui-icon, [style*=background]";
  const SHAPE = /^(circle|ellipse|image|line|path|polygon|polyline|rect|text)$/;
  // What listens to nothing itself, because it is only looked at or because what holds it listens.
  const ITEM = "canvas, img:not([alt]), .addition-block, .filetree li > span, .ui-autocomplete .ui-menu-item-wrapper,"
    + ".ui-sortable > li, .ui-wrapper > .ui-resizable-handle";
  // What can be acted on, but less well than what is in it.
  const HOLDER = "svg, g, .email-send, p[role=tab], .filetree li, .ui-autocomplete, .ui-slider, .ui-sortable";
  gui.kind = (el) => {
    if (HIDDEN.has(el.id) || el.id === "query" && !el.querySelector(PICTURE)) return null;
    if (SHAPE.test(el.localName) || el.matches(ITEM) || el.matches(PICTURE) && el.closest("#query")) return "item";
    if (el.matches(HOLDER)) return "";
  };

  // What a text cannot tell of an item: its id, class or file, its colour, its centre, and the size of a shape. Of some
  // it tells less than the picture beside it.
  const GENERAL = /^ui-(button|corner|icon$|resizable-handle|slider-handle|state|widget)/;
  gui.label = (el, label) => {
    const shape = SHAPE.test(el.localName), icon = el.querySelector(":scope > .ui-icon");
    if (icon && el.matches(".ui-menu-item-wrapper")) return `${label} ${[...icon.classList].at(-1)}`;
    if (el.matches(".filetree li > span")) return `${label} ${el.matches(".folder") ? "folder" : "file"}`;
    if (label && !shape || el.matches("input, select, textarea")) return undefined;
    const at = (x, y) => `${Math.round(x)},${Math.round(y)}`, {x, y, width, height} = el.getBoundingClientRect();
    const centre = `at ${at(x + width / 2, y + height / 2)}`;
    if (el.matches(".ui-slider-handle")) {
      const track = el.parentElement.getBoundingClientRect();
      return `slider handle ${centre} on ${at(track.left, track.top)} to ${at(track.right, track.bottom)}`;
    }
    const names = [el.id, ...[...el.classList].filter((name) => !GENERAL.test(name)), el.src?.split("/").pop()];
    const painted = el.getAttribute("fill") || (shape ? getComputedStyle(el).fill : el.style.backgroundColor);
    const colour = /^(none|rgb\(0, 0, 0\))$/.test(painted) ? "" : painted;
    const size = shape || el.localName === "canvas" ? `${Math.round(width)}x${Math.round(height)}` : "";
    return [label, shape && el.localName, ...names, colour, size, centre].filter(Boolean).join(" ");
  };
}
