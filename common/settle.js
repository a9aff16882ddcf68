// When is a page at rest? Runs before any script of every document, in every frame (an init script, before page.js).
// It counts what the page has under way (navigations, requests of its scripts, timers), owns its clock, and offers
// `__gui.rest()`, which page.js awaits before it looks.
(config) => {
  const begin = (gui) => Object.assign(gui, {
    document,
    parsed: document.readyState !== "loading",  // and not again false when a script calls document.write()
    slow: false,  // it was not complete when the wait for it was over
    leaving: [],  // URLs of the navigations that will end this document
    pending: new Set(),  // requests, and timers of the real clock
    refused: "",  // what was not allowed to happen
    opened: false,  // a new tab is to come
    sites: null,  // URL prefixes the task is limited to, or *.host
    elements: [],  // what the last observation offered; an id is a position in it
  });
  if (window.__gui) {  // the window of an initial about:blank, which its first true document takes over
    if (window.__gui.document !== document) begin(window.__gui);
    return;
  }
  const gui = begin({});
  Object.defineProperty(window, "__gui", {value: gui});
  const later = setTimeout.bind(window), realNow = performance.now.bind(performance);  // the page gets a virtual clock
  const wrap = (owner, name, make) => { owner[name] = make(owner[name]); };
  const remove = (list, item) => { const i = list.indexOf(item); if (i >= 0) list.splice(i, 1); };
  window.addEventListener("DOMContentLoaded", () => { gui.parsed = true; });
  const reachable = (w) => { try { return w.__gui; } catch { return null; } };  // null: another origin
  const top = reachable(window.top) ? window.top : window;

  // ---- Navigations. The `navigate` event comes before anything is sent. ----

  const {URL} = window;
  const inSite = (url, site) => site.startsWith("*.")
    ? `.${new URL(url).host}`.endsWith(site.slice(1))
    : url.startsWith(site) && (site.endsWith("/") || /^($|[/?#])/.test(url.slice(site.length)));
  navigation.addEventListener("navigate", (event) => {
    const {url, sameDocument} = event.destination;
    if (event.downloadRequest !== null) {
      top.__gui.refused = "downloads are refused";
      return event.preventDefault();
    }
    if (sameDocument) return;
    const outside = gui.sites && /^https?:/.test(url) && !gui.sites.some((site) => inSite(url, site));
    if (outside && window === top && event.cancelable) {
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

  // A new tab is an event of the browser that comes some time later.
  wrap(window, "open", (open) => function (...args) {
    if (!args[1] || args[1] === "_blank") top.__gui.opened = true;
    return open.apply(this, args);
  });
  const opensTab = (event) => {
    const isLink = (node) => node.localName === "a" && node.href;
    const source = event.type === "submit" ? event.target : event.composedPath().find(isLink);
    const target = event.submitter?.formTarget || source?.target || document.querySelector("base[target]")?.target;
    if (source && !event.defaultPrevented && target === "_blank") top.__gui.opened = true;
  };
  window.addEventListener("click", opensTab);
  window.addEventListener("submit", opensTab);

  // ---- Requests of scripts, until their answer is read ----

  const track = (promise) => {
    const token = {};
    gui.pending.add(token);
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

  const timers = new Map();
  let now = 0, lastTimer = 0, nested = false;
  if (config.virtualClock) {
    const start = Date.UTC(2025, 0, 15, 12), date = () => Math.floor(start + performance.now());
    const add = (f, delay, args, repeats) => {
      const wait = Math.max(repeats ? 1 : 0, +delay || 0);
      timers.set(++lastTimer, {due: now + wait, run: () => f(...args), every: repeats ? wait : 0});
      return lastTimer;
    };
    for (const [name, repeats] of [["setTimeout", false], ["setInterval", true]])
      wrap(window, name, (native) => (f, delay, ...args) =>
        typeof f === "function" ? add(f, delay, args, repeats) : native(f, delay));
    window.requestAnimationFrame = (f) => add(() => f(now), 16, [], false);
    window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = (id) => { timers.delete(id); };
    performance.now = () => now += 0.01;  // it creeps, so that a loop that waits for time to pass ends
    Date.now = date;
    window.Date = new Proxy(Date, {
      construct: (target, args, self) => Reflect.construct(target, args.length ? args : [date()], self),
      apply: () => new window.Date().toString(),
    });
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
  gui.tick = async () => {
    if (!config.virtualClock) return;
    const end = now + config.tick;
    for (let n = 0; n < 1000; n++) {
      let next = null;
      for (const entry of timers) if (entry[1].due <= end && !(next && next[1].due <= entry[1].due)) next = entry;
      if (!next) break;
      const [id, timer] = next;
      now = Math.max(now, timer.due);
      if (timer.every) timer.due = now + timer.every; else timers.delete(id);
      try { timer.run(); } catch (error) { reportError(error); }
      await task();  // what awaits this timer goes on before the next one runs
    }
    now = Math.max(now, end);
    for (const animation of document.getAnimations()) {
      try { animation.finish(); } catch {  // an endless one: it stands still, or it would be drawn without end
        animation.pause();
        animation.currentTime = 0;
      }
    }
  };

  gui.rewind = () => {  // an episode begins in this document, at time 0; what is under way has as far to go as before
    for (const timer of timers.values()) timer.due -= now;
    now = 0;
  };

  // ---- Rest ----

  const frames = (w = window) => {  // this window and the same-origin ones below it
    const found = [w];
    for (let i = 0; i < w.length; i++) if (reachable(w[i])) found.push(...frames(w[i]));
    return found;
  };
  const refreshes = () => {  // <meta http-equiv=refresh>, about to fire
    const meta = document.querySelector("meta[http-equiv=refresh i]");
    return meta && parseFloat(meta.content) * 1000 <= config.tick;
  };
  const idle = async (deadline) => {  // until nothing is under way; whether there was anything, and time is left
    await new Promise(later);  // a form is submitted in a task of its own
    for (let waited = false; ; waited = true) {
      // Without a time limit here (the driver has one): a document that is going to end, or has hardly begun.
      const ending = window.closed || gui.leaving.length || !gui.parsed, late = realNow() > deadline;
      const busy = refreshes() || frames().some(({__gui: g, document: {readyState}}) =>
        !g.parsed || g.leaving.length || g.pending.size || readyState === "interactive" && !g.slow);
      if (!ending && late && busy)  // a long poll, an image that never comes: not waited for again
        for (const w of frames()) { w.__gui.pending.clear(); w.__gui.slow = true; }
      if (!ending && (late || !busy)) return waited && !late;
      await new Promise((done) => later(done, 4));
    }
  };
  gui.rest = async () => {
    const deadline = realNow() + config.settle;
    await idle(deadline);
    for (let round = 0; round < 5; round++) {  // what a timer starts may set another timer
      await Promise.all(frames().map((w) => w.__gui.tick()));
      if (!(await idle(deadline))) break;
    }
  };

  // ---- End of an episode: empty what belongs to the tab, and let nothing of the old page run any more ----

  for (const name of ["beforeunload", "pagehide", "unload", "visibilitychange"])
    window.addEventListener(name, (event) => { if (gui.over) event.stopImmediatePropagation(); }, true);
  gui.leave = () => {
    for (const w of frames()) { w.__gui.over = true; w.sessionStorage.clear(); }
    window.name = "";
    window.stop();
    return "{}";
  };
}
