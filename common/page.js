// The part of the browser driver that lives in the page. An init script: it runs before any script of every document, in
// every frame. `window.__gui` is what browser.py calls: act(), observe(), rest(), locate(), leave().
// Ids are positions in `elements`, the list of what the last observation offered; nothing is written into the page's DOM.
(config) => {
  if (window.__gui) return;
  const later = setTimeout.bind(window);  // the native timer: the virtual clock below replaces the page's
  const realNow = performance.now.bind(performance);
  const gui = {pending: new Set(), leaving: false, opened: false, closing: false, refused: "", sites: null, elements: []};
  Object.defineProperty(window, "__gui", {value: gui});
  const isTop = window === window.top;

  // ---- What is under way: navigations, requests of the page's scripts, timers about to fire ----

  navigation.addEventListener("navigate", (event) => {
    if (event.downloadRequest !== null) {
      gui.refused = "downloads are refused";
      return event.preventDefault();
    }
    const url = event.destination.url;
    if (event.destination.sameDocument) return;
    if (isTop && gui.sites && /^https?:/.test(url) && !gui.sites.some((site) => inSite(url, site))) {
      gui.refused = `blocked: ${url} is outside the task's sites`;
      if (event.cancelable) return event.preventDefault();
    }
    gui.leaving = true;
    // A later listener may cancel the navigation, or a client-side router may take it over.
    later(() => { if (event.defaultPrevented || navigation.transition) gui.leaving = false; });
  });
  const inSite = (url, site) => url.startsWith(site) && (/\/$/.test(site) || /^($|[/?#])/.test(url.slice(site.length)));

  const track = (promise) => {
    const token = {};
    gui.pending.add(token);
    const done = () => later(() => gui.pending.delete(token));  // after the page's own handlers
    promise.then(done, done);
    return promise;
  };
  const wrap = (owner, name, make) => { owner[name] = make(owner[name]); };
  wrap(window, "fetch", (fetch) => function (...args) { return track(fetch.apply(this, args)); });
  for (const read of ["json", "text", "blob", "arrayBuffer", "formData"])
    wrap(Response.prototype, read, (native) => function () { return track(native.call(this)); });
  wrap(XMLHttpRequest.prototype, "send", (send) => function (...args) {
    track(new Promise((done) => this.addEventListener("loadend", done, {once: true})));
    return send.apply(this, args);
  });

  // A new tab arrives as an event of the browser, later: say that one is to come.
  wrap(window, "open", (open) => function (...args) {
    const opened = open.apply(this, args);
    if (!args[1] || args[1] === "_blank") window.top.__gui.opened = true;
    return opened;
  });
  const opensTab = (event) => {
    const source = event.type === "submit" ? event.target : event.composedPath().find((n) => n.localName === "a" && n.href);
    const target = event.submitter?.formTarget || source?.target || document.querySelector("base[target]")?.target;
    if (source && !event.defaultPrevented && target === "_blank" && !source.hasAttribute("download"))
      window.top.__gui.opened = true;
  };
  window.addEventListener("click", opensTab);
  window.addEventListener("submit", opensTab);

  // Nothing of an episode that is over may run while its storage is cleared.
  for (const name of ["beforeunload", "pagehide", "unload", "visibilitychange"])
    window.addEventListener(name, (event) => { if (gui.over) event.stopImmediatePropagation(); }, true);
  gui.leave = () => {
    for (const w of frames()) { w.__gui.over = true; w.sessionStorage.clear(); }
    window.name = "";
    window.stop();
    return "{}";
  };

  const listeners = new WeakSet();  // elements that listen to clicks
  gui.listens = (el) => listeners.has(el);
  wrap(EventTarget.prototype, "addEventListener", (native) => function (type, ...rest) {
    if (/^(click|mousedown|mouseup|pointerdown|pointerup|dblclick)$/.test(type) && this instanceof Element) listeners.add(this);
    return native.call(this, type, ...rest);
  });

  // ---- Clock. Virtual: time stands still between actions and timers run when tick() says so, so that a page's state
  // depends on the actions alone. Real: timers run by themselves, and those due within `tick` ms count as pending. ----

  const timers = new Map();
  let now = 0, nextTimer = 1, depth = 0;
  if (config.virtualClock) {
    const start = Date.UTC(2025, 0, 15, 12), RealDate = Date, tag = 1 << 30;
    const add = (f, delay, args, repeat) => {
      const every = repeat ? Math.max(1, +delay || 0) : 0;
      timers.set(nextTimer, {due: now + Math.max(every, +delay || 0), f, args, every});
      return tag + nextTimer++;
    };
    window.setTimeout = (f, delay, ...args) => typeof f === "function" ? add(f, delay, args, false) : later(f, delay);
    window.setInterval = (f, delay, ...args) => add(f, delay, args, true);
    window.requestAnimationFrame = (f) => add(() => f(now), 16, [], false);
    window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = (id) => { timers.delete(id - tag); };
    performance.now = () => now += 0.01;  // creeps, so that a loop that waits for time to pass ends
    window.Date = class extends RealDate {
      constructor(...args) { super(...(args.length ? args : [Math.floor(start + performance.now())])); }
      static now() { return Math.floor(start + performance.now()); }
    };
  } else {
    wrap(window, "setTimeout", (native) => (f, delay, ...args) => {
      if (typeof f !== "function" || delay > config.tick || depth) return native(f, delay, ...args);
      const token = {}, id = native(() => {
        depth++;  // a timer that sets the next one (an animation) is not waited for
        try { f(...args); } finally { depth--; gui.pending.delete(token); timers.delete(id); }
      }, delay);
      gui.pending.add(token);
      timers.set(id, token);
      return id;
    });
    wrap(window, "clearTimeout", (native) => (id) => { gui.pending.delete(timers.get(id)); native(id); });
  }
  gui.tick = () => {
    if (!config.virtualClock) return;
    const end = now + config.tick;
    for (let n = 0; n < 10000; n++) {
      let first = null;
      for (const [id, timer] of timers) if (timer.due <= end && !(first && timers.get(first).due <= timer.due)) first = id;
      if (first === null) break;
      const timer = timers.get(first);
      now = Math.max(now, timer.due);
      if (timer.every) timer.due = now + timer.every; else timers.delete(first);
      try { timer.f(...timer.args); } catch (error) { reportError(error); }
    }
    now = Math.max(now, end);
    for (const animation of document.getAnimations()) try { animation.finish(); } catch { /* endless */ }
  };

  const frames = function* (w = window) {  // this window and the same-origin ones below it
    yield w;
    for (let i = 0; i < w.length; i++) {
      let reachable = false;
      try { reachable = w[i].__gui; } catch { /* another origin */ }
      if (reachable) yield* frames(w[i]);
    }
  };
  const refreshes = () => {  // <meta http-equiv=refresh> that is about to fire
    const meta = document.querySelector("meta[http-equiv=refresh i]");
    return meta && parseFloat(meta.content) * 1000 <= config.tick;
  };
  const idle = async () => {  // true if there was anything to wait for
    const end = realNow() + config.settle;
    let waited = false;
    await new Promise(later);  // a form is submitted in a task of its own
    for (;;) {
      let stuck = window.closed, busy = refreshes();
      for (const w of frames()) {
        stuck ||= w === window && w.__gui.leaving || w.document.readyState === "loading";
        busy ||= w.__gui.leaving || w.__gui.pending.size || w.document.readyState !== "complete";
      }
      if (!stuck && (!busy || realNow() > end)) break;  // a navigation ends this document, and this wait with it
      waited = true;
      await new Promise((done) => later(done, 4));
    }
    for (const w of frames()) w.__gui.pending.clear();  // a poll that outlasted the wait is not waited for again
    return waited;
  };
  const rest = async () => {  // until nothing more happens by itself
    await idle();
    for (let round = 0; round < 5; round++) {
      for (const w of frames()) w.__gui.tick();
      if (!(await idle()) && round) break;
      if (!config.virtualClock) break;
    }
  };

  // ---- What the agent sees ----

  const SKIP = new Set("head script style noscript template link meta br hr option optgroup datalist".split(" "));
  const INLINE = new Set("a abbr b bdi bdo cite code data del dfn em font i img ins kbd label mark q s samp small span strike strong sub sup svg time tt u var td th button input select textarea output picture slot".split(" "));
  const ROLES = {button: "button", link: "link", checkbox: "check", switch: "check", menuitemcheckbox: "check", radio: "radio",
    menuitemradio: "radio", tab: "item", option: "item", menuitem: "item", treeitem: "item"};
  const ACTIVE = "a[href],button,input,select,textarea,summary,[role=button],[role=link],[role=menuitem],[onclick]";
  const ATTRIBUTES = ["title", "value", "type", "placeholder", "data-value", "data-testid", "data-label", "data-status"];
  const clean = (text) => text.replace(/\s+/g, " ").trim();
  const shown = (el) => el.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const isBlock = (el, style) =>
    !/^(inline|table-cell|contents|none)/.test(style.display) && !INLINE.has(el.localName);

  const textOf = (el, skip) => {  // visible text; textContent, not innerText, which applies the CSS text-transform
    let text = "";
    for (const node of (el.shadowRoot || el).childNodes) {
      if (node.nodeType === 3) text += node.data;
      else if (node.nodeType !== 1 || node === skip || !shown(node)) { if (node.localName === "br") text += " "; }
      else if (node.localName === "img") text += ` ${node.alt} `;
      else if (!SKIP.has(node.localName) && !/^(input|select|textarea)$/.test(node.localName)) {
        const inner = textOf(node, skip);
        text += isBlock(node, getComputedStyle(node)) || node.localName === "td" ? ` ${inner} ` : inner;
      }
    }
    return text;
  };
  const labelOf = (el) => {
    const tag = el.localName;
    const byId = (ids) => ids && ids.split(/\s+/).map((id) => el.getRootNode().getElementById(id)?.textContent || "").join(" ");
    for (const candidate of [
      () => /^(input|select|textarea)$/.test(tag) ? "" : el.isContentEditable ? "" : textOf(el),
      () => tag === "input" && /^(submit|button|reset)$/.test(el.type) ? el.value || (el.type === "button" ? "" : el.type) : "",
      () => el.labels ? [...el.labels].map((label) => textOf(label, el)).join(" ") : "",
      () => el.getAttribute("aria-label"), () => byId(el.getAttribute("aria-labelledby")),
      ...["placeholder", "alt", "title", "name"].map((name) => () => el.getAttribute(name)),
    ]) {
      const text = clean(candidate() || "");
      if (text) return text;
    }
    return "";
  };
  const kindOf = (el, style, parentCursor) => {
    const tag = el.localName;
    if (tag === "a" && el.href) return "link";
    if (tag === "button" || tag === "summary") return "button";
    if (tag === "textarea") return "box";
    if (tag === "select") return "select";
    if (tag === "input") {
      if (el.type === "checkbox") return "check";
      return /^(submit|button|reset|image)$/.test(el.type) ? "button" : el.type === "radio" ? "radio" : "box";
    }
    if (el.isContentEditable) return el.parentElement?.isContentEditable ? "" : "box";
    const role = ROLES[el.getAttribute("role")];
    if (role) return role;
    if (tag === "label" && el.control) return shown(el.control) ? "" : /checkbox|radio/.test(el.control.type) ? kindOf(el.control) : "";
    if (tag === "body" || tag === "html") return "";
    const clickable = el.onclick || el.ownerDocument.defaultView.__gui?.listens(el) || el.hasAttribute("tabindex") && el.tabIndex >= 0
      || style.cursor === "pointer" && parentCursor !== "pointer";
    return clickable && !el.querySelector(ACTIVE) ? "item" : "";
  };
  const stateOf = (el, kind) => {  // a label stands in for its hidden check box
    const input = el.localName === "label" ? el.control : el, aria = (name) => el.getAttribute(`aria-${name}`);
    const state = {};
    if (kind === "box")
      state.value = input.type === "password" ? input.value && "***" : clean(input.value ?? input.textContent);
    if (kind === "select") {
      state.options = [...el.options].map((option) => clean(option.label));
      state.value = [...el.selectedOptions].map((option) => clean(option.label)).join(", ");
    }
    if (kind === "check" || kind === "radio") state.on = input.checked ?? aria("checked") === "true";
    if (input.matches(":disabled") || aria("disabled") === "true") state.disabled = true;
    if (aria("selected") === "true" || aria("pressed") === "true" || aria("current") === "page") state.selected = true;
    if (aria("expanded")) state.expanded = aria("expanded") === "true";
    if (el.localName === "summary") state.expanded = el.parentElement.open;
    return state;
  };

  // The page as a flat list in document order; `depth` gives the nesting. A node is a text run ({text}), something that
  // can be acted on ({id, kind, label, ...state}) or a block that holds some of these ({tag, box} only).
  const look = () => {
    const nodes = [], elements = [];
    let above = 0, below = 0, run = null;
    const view = {left: 0, top: 0, right: innerWidth, bottom: innerHeight, scrolls: true};
    const place = (r, clip) => {  // "in" the view, "above" or "below" where scrolling reaches it, or nowhere
      if (r.width < 2 || r.height < 2) return "";
      if (r.right <= clip.left + 1 || r.left >= clip.right - 1) return "";
      if (r.bottom > clip.top + 1 && r.top < clip.bottom - 1) return "in";
      return clip.scrolls ? r.bottom <= clip.top + 1 ? (above++, "above") : (below++, "below") : "";
    };
    const boxAt = (r, dx, dy) => r.width === undefined ? r : {left: r.left + dx, top: r.top + dy, right: r.right + dx, bottom: r.bottom + dy, width: r.width, height: r.height};
    const put = (node, r, attributes) => {
      node.box = [r.left, r.top, r.width, r.height].map(Math.round);
      for (const name of attributes ? ATTRIBUTES : []) {
        const value = attributes.getAttribute(name);
        if (value && !(name === "value" && attributes.type === "password")) (node.attributes ||= {})[name] = value;
      }
      nodes.push(node);
    };
    const flush = () => {
      if (!run) return;
      const {text, el, first, last, clip, depth, dx, dy} = run;
      run = null;
      if (!clean(text)) return;
      let r = el.getBoundingClientRect();
      if (first.nodeType === 3) {
        const range = el.ownerDocument.createRange();
        range.setStartBefore(first);
        range.setEndAfter(last);
        r = range.getBoundingClientRect();
      }
      r = boxAt(r, dx, dy);
      if (place(r, clip) === "in") put({depth, tag: el.localName, text: clean(text)}, r, el);
    };
    const walk = (el, clip, depth, dx, dy, parentCursor, quiet) => {
      const tag = el.localName;
      if (SKIP.has(tag)) { if (tag === "br" && run) run.text += " "; return; }
      const style = getComputedStyle(el);
      if (style.display === "none" || style.opacity === "0" || style.contentVisibility === "hidden") return;
      const visible = style.visibility === "visible";
      if (style.position === "fixed") clip = {...view, scrolls: false};
      const block = isBlock(el, style), r = boxAt(el.getBoundingClientRect(), dx, dy);
      const kind = visible && (tag !== "input" || el.type !== "hidden") && kindOf(el, style, parentCursor);
      if (kind) {
        flush();
        if (place(r, clip) === "in") {
          elements.push(el);
          const label = labelOf(tag === "label" ? el.control : el);
          put({depth, tag, id: elements.length, kind, label, ...stateOf(el, kind)}, r, el);
        }
        return;
      }
      if (block || tag === "td" || tag === "th") block ? flush() : run && (run.text += " ");
      if (style.overflowX !== "visible" && tag !== "body" && tag !== "html" && !/^inline$/.test(style.display)) {
        const scrolls = /auto|scroll/.test(style.overflowY);
        clip = {left: Math.max(clip.left, r.left), top: Math.max(clip.top, r.top), right: Math.min(clip.right, r.right),
          bottom: Math.min(clip.bottom, r.bottom), scrolls: scrolls || clip.scrolls && clip.bottom < r.top + 1};
      }
      let opened = null;
      if (block && visible && r.width > 1 && r.height > 1) { opened = nodes.length; put({depth: depth++, tag}, r, el); }
      if (tag === "label" && el.control) quiet = true;  // its text is the control's label
      if (tag === "img" && visible && el.alt) addText(el.alt, el, el, clip, depth, dx, dy);
      if (tag === "iframe") {
        const inner = el.contentDocument?.body;
        flush();
        if (inner) walk(inner, {left: Math.max(clip.left, r.left), top: Math.max(clip.top, r.top),
          right: Math.min(clip.right, r.right), bottom: Math.min(clip.bottom, r.bottom), scrolls: true},
          depth, r.left + el.clientLeft, r.top + el.clientTop, "auto", false);
      }
      const assigned = tag === "slot" && el.assignedNodes();
      for (const child of assigned?.length ? assigned : (el.shadowRoot || el).childNodes) {
        if (child.nodeType === 1) walk(child, clip, depth, dx, dy, style.cursor, quiet);
        else if (child.nodeType === 3 && visible && !quiet) addText(child.data, child, el, clip, depth, dx, dy);
      }
      if (block) flush();
      if (opened !== null && nodes.length === opened + 1) nodes.pop();  // it held nothing
    };
    const addText = (text, node, el, clip, depth, dx, dy) => {
      if (!run && !text.trim()) return;
      run ||= {text: "", el, first: node, last: node, clip, depth, dx, dy};
      run.text += text;
      if (node.nodeType === 3 && text.trim()) run.last = node;
    };
    if (document.body) walk(document.body, view, 0, 0, 0, "auto", false);
    flush();
    gui.elements = elements;
    return {nodes, above, below};
  };

  gui.observe = async (args = {}) => {
    gui.sites = args.sites;
    await rest();
    const entry = performance.getEntriesByType("navigation")[0];
    const error = args.error || gui.refused, opened = gui.opened;
    gui.refused = "";
    gui.opened = false;
    return JSON.stringify({url: location.href, title: document.title, status: entry?.responseStatus || 0, error, opened, ...look()});
  };

  // ---- What the agent does ----

  const find = (id) => {
    const el = gui.elements[id - 1];
    if (!el) throw `there is no element ${id} on this page`;
    if (!el.isConnected) throw `element ${id} is gone`;
    if (el.matches(":disabled")) throw `element ${id} is disabled`;
    return el;
  };
  const centre = (el) => {  // in view, and in the coordinates of the element's own document
    let r = el.getBoundingClientRect();
    const {innerWidth: w, innerHeight: h} = el.ownerDocument.defaultView;
    if (r.left < 0 || r.top < 0 || r.right > w || r.bottom > h) el.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});
    r = [...el.getClientRects()].find((part) => part.width && part.height) || el.getBoundingClientRect();  // a link over two lines
    return {x: r.left + r.width / 2, y: r.top + r.height / 2};
  };
  const reachable = (el) => {
    const {x, y} = centre(el);
    let hit = el.ownerDocument.elementFromPoint(x, y);
    while (hit?.shadowRoot) {
      const inner = hit.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === hit) break;
      hit = inner;
    }
    const above = [];  // the hit and all that holds it, out of shadow trees too
    for (let node = hit; node; node = node.parentNode || node.host) above.push(node);
    const label = above.find((node) => node.localName === "label");
    if (hit && !above.includes(el) && label?.control !== el && !hit.contains(el)) throw "another element covers it";
    return {x, y};
  };
  const mouse = (el, type, extra = {}) => {
    const Event = type.startsWith("pointer") ? PointerEvent : MouseEvent;
    const {x, y} = extra.at;
    return el.dispatchEvent(new Event(type, {bubbles: true, cancelable: true, composed: true, view: el.ownerDocument.defaultView,
      clientX: x, clientY: y, detail: 1, pointerId: 1, isPrimary: true, pointerType: "mouse", ...extra}));
  };
  const press = (el, at, button = 0) => {
    for (const type of ["pointerover", "pointerenter", "mouseover", "mouseenter", "pointermove", "mousemove"]) mouse(el, type, {at});
    mouse(el, "pointerdown", {at, button, buttons: button || 1});
    if (mouse(el, "mousedown", {at, button, buttons: button || 1})) {
      if (el.focus) el.focus({preventScroll: true}); else document.activeElement?.blur?.();
    }
    mouse(el, "pointerup", {at, button});
    mouse(el, "mouseup", {at, button});
  };
  const click = (el) => {
    const at = reachable(el);
    press(el, at);
    if (el.click) el.click(); else mouse(el, "click", {at});
  };
  const type = (el, text) => {
    if (el.readOnly) throw "the box is read-only";
    if (!el.isContentEditable && !/^(input|textarea)$/.test(el.localName)) throw "text can only be typed into a box";
    if (/^(checkbox|radio|file|submit|button|image|reset|range|color)$/.test(el.type)) throw "text can only be typed into a box";
    el.focus({preventScroll: true});
    if (el.isContentEditable) el.textContent = text;
    else {
      const value = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(el), "value");  // past a framework's own setter
      value.set.call(el, el.maxLength >= 0 ? text.slice(0, el.maxLength) : text);
    }
    el.dispatchEvent(new InputEvent("input", {bubbles: true, composed: true, data: text, inputType: "insertText"}));
    el.dispatchEvent(new Event("change", {bubbles: true}));
  };
  const enter = (el) => {
    const key = (type) => el.dispatchEvent(new KeyboardEvent(type, {key: "Enter", code: "Enter", keyCode: 13, charCode: 13,
      which: 13, bubbles: true, cancelable: true, composed: true}));
    if (key("keydown") && key("keypress") && el.localName === "input" && el.form) {
      const submit = [...el.form.elements].find((e) => e.type === "submit" || e.type === "image");
      if (submit) { if (!submit.disabled) submit.click(); } else el.form.requestSubmit();
    }
    key("keyup");
  };
  const select = (el, text) => {
    if (el.localName !== "select") throw "this element has no options";
    const wanted = clean(text).toLowerCase(), names = [...el.options].map((o) => clean(o.label).toLowerCase());
    let index = names.indexOf(wanted);
    if (index < 0) index = names.findIndex((name) => wanted && name.includes(wanted));
    if (index < 0) throw `there is no option "${clean(text)}"`;
    if (el.options[index].disabled) throw `option "${clean(text)}" is disabled`;
    el.focus({preventScroll: true});
    if (el.multiple) el.options[index].selected = true; else el.selectedIndex = index;
    for (const name of ["input", "change"]) el.dispatchEvent(new Event(name, {bubbles: true, composed: true}));
  };
  const scroll = (el, sign) => {
    const scrolls = (box) => box && (sign < 0 ? box.scrollTop > 0 : box.scrollTop + box.clientHeight < box.scrollHeight - 1)
      && (box === document.scrollingElement || /auto|scroll/.test(getComputedStyle(box).overflowY));
    let box = el;
    while (box && !scrolls(box)) box = box.parentElement;
    if (!box && scrolls(document.scrollingElement)) box = document.scrollingElement;
    const area = (e) => e.clientWidth * e.clientHeight;
    box ||= [...document.querySelectorAll("body *")].filter(scrolls).sort((a, b) => area(b) - area(a))[0];
    if (!box) throw `the page does not scroll further ${sign < 0 ? "up" : "down"}`;
    box.scrollBy({top: sign * 2 / 3 * Math.min(box.clientHeight, innerHeight), behavior: "instant"});
  };
  const ACTIONS = {
    "Click": click,
    "Right Click": (el) => { const at = reachable(el); press(el, at, 2); mouse(el, "contextmenu", {at, button: 2}); },
    "Type": type,
    "Search": (el, text) => { type(el, text); enter(el); },
    "Select Dropdown Option": select,
    "Scroll Up": (el) => scroll(el, -1),
    "Scroll Down": (el) => scroll(el, 1),
    "Focus": (el) => el.focus(),
    "Wait": () => {},
  };
  gui.act = async ({name, element, argument, sites}) => {
    gui.sites = sites;
    try {
      ACTIONS[name](element == null ? null : find(element), argument);
    } catch (error) {
      if (typeof error !== "string") throw error;
      return gui.observe({sites, error});
    }
    return gui.observe({sites});
  };
  gui.traverse = async ({step, sites, error}) => {  // back or forward: the document ends, or says that it is another page now
    const arrived = new Promise((done) => {
      window.addEventListener("popstate", done, {once: true});
      document.addEventListener("load", (event) => event.target.localName === "iframe" && done(), {capture: true});
    });
    history.go(step);
    await arrived;
    return gui.observe({sites, error});
  };
  gui.locate = ({element}) => {  // where a real mouse has to go, in the viewport's coordinates
    try {
      const el = find(element);
      let {x, y} = reachable(el);
      for (let w = el.ownerDocument.defaultView; w !== window; w = w.parent) {
        const r = w.frameElement.getBoundingClientRect();
        x += r.left + w.frameElement.clientLeft;
        y += r.top + w.frameElement.clientTop;
      }
      return JSON.stringify({x, y});
    } catch (error) {
      if (typeof error !== "string") throw error;
      return JSON.stringify({error});
    }
  };
};
