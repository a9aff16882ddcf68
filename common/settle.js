// When is a page at rest? Runs before any script of every document, in every frame (an init script, before page.js).
// It counts what the page has under way (navigations, requests of its scripts, timers), owns its clock, and offers
// `__gui.rest()`, which page.js awaits before it looks.
(config) => {
  const begin = (gui) => Object.assign(gui, {
    document,
    parsed: document.readyState !== "loading",  // and not again false when a script calls document.write()
    slow: false,  // it was not complete when the wait for it was over
    leaving: [],  // URLs of the navigations that will end this document
    requests: 0,  // how many there were
    pending: new Set(),  // requests, and timers of the real clock
    tried: new Set(),  // URLs of all navigations that this document began, also of those that led nowhere
    refused: "",  // what was not allowed to happen
    named: "",  // the tab that something is to be shown in, which may be there already
    sites: null,  // URL prefixes the task is limited to, or *.host
    hearsAll: false,  // the page listens to clicks on the whole document
    elements: [],  // what the last observation offered; an id is a position in it
  });
  if (window.__gui) return window.__gui.renew();
  const gui = begin({}), ears = [], {addEventListener: listen} = EventTarget.prototype;  // page.js counts the page's
  gui.hear = (target, ...ear) => {
    ears.push([target, ...ear]);
    listen.call(target, ...ear);
  };
  gui.renew = () => {  // the first true document takes over the window of an initial about:blank, often without a word
    if (gui.document === document) return;
    begin(gui);
    for (const [target, ...ear] of ears) listen.call(target, ...ear);
  };
  Object.defineProperty(window, "__gui", {value: gui});
  const later = setTimeout.bind(window), realNow = performance.now.bind(performance);  // the page gets a virtual clock
  const nextFrame = requestAnimationFrame.bind(window);
  const wrap = (owner, name, make) => { owner[name] = make(owner[name]); };
  const remove = (list, item) => { const i = list.indexOf(item); if (i >= 0) list.splice(i, 1); };

  // A document's forms and images, and a form's fields, hide its own properties by their names (<form name=title>,
  // <input name=children>): this reads past them. Our own pages have no such names.
  const {apply} = Reflect, typeOf = Object.getOwnPropertyDescriptor(Node.prototype, "nodeType").get;
  const tagOf = Object.getOwnPropertyDescriptor(Element.prototype, "localName").get;
  const past = ({prototype}) => (node) => new Proxy(node, {get: (target, name) => {
    const value = Reflect.get(prototype, name, target);
    return typeof value === "function" ? (...args) => apply(value, target, args) : value;
  }});
  const pastForms = past(HTMLDocument), pastFields = past(HTMLFormElement);
  gui.plain = (node) => {
    if (config.embedded || !node) return node;
    const type = apply(typeOf, node, []);
    return type === 9 ? pastForms(node) : type === 1 && apply(tagOf, node, []) === "form" ? pastFields(node) : node;
  };
  const {plain} = gui;
  gui.hear(window, "DOMContentLoaded", () => { gui.parsed = true; });
  let runs = false;
  window.addEventListener("__gui", () => { runs = true; }, {once: true});
  window.dispatchEvent(new Event("__gui"));
  gui.scripts = runs;  // no listener and no timer is ever called where scripts are off
  const reachable = (w) => { try { return w.__gui; } catch { return null; } };  // null: another origin
  const top = reachable(window.top) ? window.top : window;
  gui.top = top.__gui;
  gui.embedded = config.embedded;

  // ---- Navigations. The `navigate` event comes before anything is sent. ----

  const {URL} = window;
  const inSite = (url, site) => site.startsWith("*.")
    ? `.${new URL(url).host}`.endsWith(site.slice(1))
    : url.startsWith(site) && (site.endsWith("/") || /^($|[/?#])/.test(url.slice(site.length)));
  gui.hear(navigation, "navigate", (event) => {
    const {url, sameDocument} = event.destination;
    gui.tried.add(url);
    if (event.downloadRequest !== null) {
      top.__gui.refused = "downloads are refused";
      return event.preventDefault();
    }
    if (sameDocument) return;
    const outside = gui.sites && /^https?:/.test(url) && !gui.sites.some((site) => inSite(url, site));
    if (outside && window === window.top && event.cancelable) {
      gui.refused = `blocked: ${url} is outside the task's sites`;
      return event.preventDefault();
    }
    gui.leaving.push(url);
    later(() => { if (event.defaultPrevented) remove(gui.leaving, url); });  // by a later listener
  });
  // A client-side router makes a change of this document of it.
  wrap(NavigateEvent.prototype, "intercept", (intercept) => function (options) {
    intercept.call(this, options);
    remove(gui.leaving, this.destination.url);
  });
  gui.failed = (url) => {  // told by the driver: 204 No Content, or a download
    const bare = (u) => u.split("#")[0];
    remove(gui.leaving, gui.leaving.find((leaving) => bare(leaving) === bare(url)));
  };

  gui.broken = () => { gui.parsed = true; };  // told by the driver: the rest of this document never comes

  // A tab that is to show something: the driver hears of one that opens, but not of one that is there already.
  const names = (target) => { if (/^([^_]|_blank$)/i.test(target)) top.__gui.named = target; };
  wrap(window, "open", (open) => function (...args) {
    names(`${args[1] || "_blank"}`);
    return open.apply(this, args);
  });
  const namesTab = (event) => {
    const isLink = (node) => node.localName === "a" && node.href;
    const source = event.type === "submit" ? event.target : event.composedPath().find(isLink);
    const base = plain(document).querySelector("base[target]"), target = event.submitter?.formTarget || source?.target
      || base?.target;
    if (source && !event.defaultPrevented) names(target || "");
  };
  gui.hear(window, "click", namesTab);
  gui.hear(window, "submit", namesTab);

  // ---- Requests of scripts, until their answer is read ----

  const track = (promise) => {
    const token = {};
    gui.pending.add(token);
    gui.requests++;
    const done = () => later(() => gui.pending.delete(token));  // after the page's own handlers
    promise.then(done, done);
    return promise;
  };
  wrap(window, "fetch", (fetch) => function (...args) { return track(fetch.apply(this, args)); });
  for (const read of ["json", "text", "blob", "arrayBuffer", "formData"])
    wrap(Response.prototype, read, (native) => function () { return track(native.call(this)); });
  wrap(XMLHttpRequest.prototype, "send", (send) => function (...args) {
    track(new Promise((done) => this.addEventListener("loadend", done, {once: true})));
    return send.apply(this, args);
  });

  // ---- Clock. Virtual: time stands still between actions and moves `tick` ms with each, so that a page depends on
  // the actions alone and nothing waits. Real: timers run by themselves; short ones (`tick`) are waited for. ----

  // When this document begins, by the virtual clock: of our own pages (`embedded`) always at the same moment; of others
  // now, but not before what the document before it, the one around it or the one that opened it had come to.
  const LAST = "__gui_time";
  const begins = () => {
    if (config.embedded) return Date.UTC(2025, 0, 15, 12);
    let last = 0;
    try {
      last = Number(sessionStorage.getItem(LAST));
      sessionStorage.removeItem(LAST);
    } catch {}  // a document without storage
    const [around, opener] = [window.parent, window.opener].map((w) => w && w !== window && reachable(w));
    return Math.max(Date.now(), last || 0, around?.time?.() || 0, opener?.time?.() || 0);
  };

  const timers = new Map();
  let now = 0, lastTimer = 0, nested = false;
  if (config.virtualClock) {
    const start = begins(), trueDate = Date.now.bind(Date), date = () => Math.floor(start + performance.now());
    gui.time = () => Math.floor(start + now);
    gui.hear(window, "pagehide", () => {  // it may have run ahead of the true time
      if (config.embedded || window !== top || gui.time() <= trueDate()) return;
      try { sessionStorage.setItem(LAST, gui.time()); } catch {}
    });
    const add = (f, delay, args, repeats) => {
      const wait = Math.max(repeats ? 1 : 0, +delay || 0);
      timers.set(++lastTimer, {due: now + wait, run: () => f(...args), every: repeats ? wait : 0});
      return lastTimer;
    };
    for (const [name, repeats] of [["setTimeout", false], ["setInterval", true]])
      wrap(window, name, (native) => (f, delay, ...args) =>
        typeof f === "function" ? add(f, delay, args, repeats) : native(f, delay));
    window.requestAnimationFrame = (f) => add(() => f(now), 16, [], false);
    window.requestIdleCallback = (f) => add(() => f({didTimeout: false, timeRemaining: () => 50}), 1, [], false);
    for (const name of ["clearTimeout", "clearInterval", "cancelAnimationFrame", "cancelIdleCallback"])
      window[name] = (id) => { timers.delete(id); };
    performance.now = () => now += 0.01;  // it creeps, so that a loop that waits for time to pass ends
    Date.now = date;
    window.Date = new Proxy(Date, {
      construct: (target, args, self) => Reflect.construct(target, args.length ? args : [date()], self),
      apply: () => new window.Date().toString(),
    });
    Date.prototype.constructor = Date;
  } else {
    wrap(window, "setTimeout", (native) => (f, delay, ...args) => {
      if (typeof f !== "function" || delay > config.tick || nested) return native(f, delay, ...args);
      const id = native(() => {
        nested = true;  // a timer set by a timer (an animation, a poll) is not waited for
        try { f(...args); } finally { nested = false; gui.pending.delete(id); }
      }, delay);
      gui.pending.add(id);
      return id;
    });
    wrap(window, "clearTimeout", (native) => (id) => { gui.pending.delete(id); native(id); });
  }
  const channel = new MessageChannel();
  const task = () => new Promise((done) => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
  gui.tick = async (ms) => {  // whether anything came of it
    if (!config.virtualClock) return false;
    const end = now + ms;
    let ran = false;
    for (let n = 0; n < 2 * ms; n++) {
      let next = null;
      for (const entry of timers) if (entry[1].due <= end && !(next && next[1].due <= entry[1].due)) next = entry;
      if (!next) break;
      const [id, timer] = next;
      now = Math.max(now, timer.due);
      if (timer.every) timer.due = now + timer.every; else timers.delete(id);
      ran = true;
      try { timer.run(); } catch (error) { reportError(error); }
      await task();  // what awaits this timer goes on before the next one runs
    }
    now = Math.max(now, end);
    for (const animation of plain(document).getAnimations()) {
      try {
        animation.finish();
        ran = true;
      } catch {  // an endless one: it stands still, or it would be drawn without end
        animation.pause();
        animation.currentTime = 0;
      }
    }
    return ran;
  };

  gui.rewind = () => {  // an episode begins in this document, at time 0; what is under way has as far to go as before
    for (const timer of timers.values()) timer.due -= now;
    now = 0;
  };

  // ---- Rest ----

  const frames = (w = window) => {  // this window and the same-origin ones below it
    const found = [w];
    w.__gui.renew();
    for (let i = 0; i < w.length; i++) if (reachable(w[i])) found.push(...frames(w[i]));
    return found;
  };
  gui.frames = frames;
  const LATEST = 10000;  // ms
  let readAt = null;
  const refreshes = () => {  // <meta http-equiv=refresh>, about to fire; one that was refused, or never comes, is over
    const doc = plain(document), meta = doc.querySelector("meta[http-equiv=refresh i]");
    const wait = meta && parseFloat(meta.content) * 1000;
    if (!meta || !(wait <= Math.min(Math.max(config.tick, now), LATEST))) return false;  // by the virtual clock, too
    readAt ??= realNow();
    const [, url = location.href] = meta.content.match(/url\s*=\s*["']?([^"']*)/i) || [];
    return realNow() < readAt + wait + 5000 && !gui.tried.has(URL.parse(url, doc.baseURI)?.href);
  };
  // DOMContentLoaded is not heard where scripts are off, as in a sandboxed frame.
  const isParsed = ({__gui: g, document}) => g.parsed ||= plain(document).readyState !== "loading";
  const idle = async (deadline) => {  // until nothing is under way; whether there was anything, and time is left
    await new Promise(later);  // a form is submitted in a task of its own
    for (let waited = false; ; waited = true) {
      // Without a time limit here (the driver has one): a page that is going to end, or has hardly begun.
      const ending = window === window.top && (window.closed || gui.leaving.length || !isParsed(window));
      const late = realNow() > deadline;
      const busy = refreshes() || frames().some((w) => !isParsed(w) || w.__gui.leaving.length || w.__gui.pending.size
        || plain(w.document).readyState === "interactive" && !w.__gui.slow);
      if (!ending && late && busy)  // a long poll, an image that never comes: not waited for again
        for (const w of frames()) { w.__gui.pending.clear(); w.__gui.slow = true; }
      if (!ending && (late || !busy)) return waited && !late;
      await new Promise((done) => later(done, 4));
    }
  };
  // What comes with a frame (observers of what is in view and of sizes, transitions' ends) has come after two of them.
  const drawn = () => config.embedded || plain(document).hidden || new Promise((done) => {
    later(done, 200);  // none comes
    nextFrame(() => nextFrame(() => later(done)));
  });
  gui.rest = async (wait = 0) => {
    if (!gui.scripts) return;  // nothing could be waited for here: the driver does
    const deadline = realNow() + config.settle;
    await idle(deadline);
    const requests = () => frames().reduce((sum, w) => sum + w.__gui.requests, 0);
    for (let round = 0; round < 5; round++) {  // what a timer starts may set another timer
      const before = requests();
      await drawn();
      const ticks = frames().map((w) => w.__gui.tick(round ? config.tick : wait || config.tick));
      if ((await Promise.all(ticks)).some(Boolean)) await drawn();
      if (!(await idle(deadline)) && (config.embedded || requests() === before)) break;  // some end between two frames
    }
  };
}
