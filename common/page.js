// What an agent sees of a page and does to it: `__gui.observe()`, `act()`, `locate()`, `visit()`, `traverse()` for
// browser.py. An init script like settle.js, which comes first. It keeps elements in `__gui.elements` and adds nothing to
// the page.
//
// A third script may add what an environment knows of its own pages (envs/miniwob.js):
//   gui.kind(el)           an element's kind, "" for none, null for what is not shown at all; undefined: as of any page
//   gui.label(el, label)   another label; undefined: this one
//   gui.ready()            a promise of what else has to be there before a look
//   gui.report()           what goes into every reply besides
//   gui.start(options)     begins an episode in the document as it is, for gui.play()
() => {
  const gui = window.__gui;
  if (gui.observe) return;

  // Elements that listen to clicks can be acted on, whatever their tag.
  const listening = new WeakSet();
  gui.listens = (el) => listening.has(el);
  const native = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (/^(click|dblclick|(mouse|pointer)(down|up))$/.test(type) && this instanceof Element) listening.add(this);
    return native.call(this, type, ...rest);
  };

  // ---- What the agent sees ----

  const SKIP = new Set("head script style noscript template link meta hr option optgroup datalist".split(" "));
  const INLINE = new Set(("a abbr b bdi bdo button cite code data del dfn em font i img input ins kbd label mark "
    + "output picture q s samp select slot small span strike strong sub sup svg td textarea th time u var").split(" "));
  const ROLES = {button: "button", link: "link", checkbox: "check", switch: "check", menuitemcheckbox: "check",
    radio: "radio", menuitemradio: "radio", tab: "item", option: "item", menuitem: "item", treeitem: "item"};
  const ACTIVE = "a[href],button,input,select,textarea,summary,[role=button],[role=link],[role=menuitem],[onclick]";
  const ATTRIBUTES = "title value type placeholder data-value data-testid data-label data-status".split(" ");
  const FIELD = /^(input|select|textarea)$/, PUSH = /^(submit|button|reset|image)$/;
  const clean = (text) => text.replace(/\s+/g, " ").trim();
  const childrenOf = (el) => {  // as they are shown: a shadow tree instead of what it hosts, which its slots bring back
    const assigned = el.localName === "slot" && el.assignedNodes();
    return assigned.length ? assigned : (el.shadowRoot || el).childNodes;
  };
  const isBlock = (el, style) => !INLINE.has(el.localName) && !/^(inline|contents|table-cell)/.test(style.display);
  const shown = (el) => getComputedStyle(el).display === "contents"
    || el.checkVisibility({opacityProperty: true, visibilityProperty: true});

  const textOf = (el, skip) => {  // visible text; not innerText, which applies the style's text-transform
    let text = "";
    for (const node of childrenOf(el)) {
      if (node.nodeType === 3) text += node.data;
      if (node.nodeType !== 1 || node === skip || SKIP.has(node.localName) || FIELD.test(node.localName)) continue;
      if (node.localName === "br") text += " ";
      else if (shown(node)) {
        const apart = node.localName === "td" || isBlock(node, getComputedStyle(node)) ? " " : "";
        text += apart + (node.localName === "img" ? ` ${node.alt} ` : textOf(node, skip)) + apart;
      }
    }
    return text;
  };
  const labelOf = (el) => {  // the first of these that is not empty
    const field = FIELD.test(el.localName), attribute = (name) => () => el.getAttribute(name);
    const sources = [
      () => field || el.isContentEditable ? "" : textOf(el),
      () => field && PUSH.test(el.type) && (el.value || { submit: "submit", reset: "reset" }[el.type]),
      () => [...el.labels || []].map((label) => textOf(label, el)).join(" "),
      attribute("aria-label"),
      () => el.ariaLabelledByElements?.map((other) => other.textContent).join(" "),
      attribute("placeholder"), attribute("alt"), attribute("title"), attribute("name"),
    ];
    for (const source of sources) {
      const text = clean(source() || "");
      if (text) return text;
    }
    return "";
  };
  const kindOf = (el, style, parent) => {  // link, button, box, select, check, radio, item; "": it cannot be acted on
    const tag = el.localName, role = ROLES[el.getAttribute("role")];
    if (tag === "input") {
      if (el.type === "hidden") return "";
      return PUSH.test(el.type) ? "button" : {checkbox: "check", radio: "radio"}[el.type] || "box";
    }
    if (tag === "textarea") return "box";
    if (tag === "select") return "select";
    if (role) return role;
    if (tag === "a" && el.href) return "link";
    if (tag === "button" || tag === "summary") return "button";
    if (el.isContentEditable) return el.parentElement?.isContentEditable ? "" : "box";
    if (tag === "label" && el.control)  // it stands in for a check box that a style has replaced
      return /checkbox|radio/.test(el.control.type) && !shown(el.control) ? kindOf(el.control) : "";
    if (tag === "body" || tag === "html" || tag === "iframe") return "";
    const clickable = el.onclick || el.ownerDocument.defaultView.__gui.listens(el)
      || el.hasAttribute("tabindex") && el.tabIndex >= 0 || style.cursor === "pointer" && parent?.cursor !== "pointer";
    return clickable && !el.querySelector(ACTIVE) ? "item" : "";  // a card that holds links is no link itself
  };
  const stateOf = (el, kind) => {
    const field = el.localName === "label" ? el.control : el, state = {};
    const aria = (name) => el.getAttribute(`aria-${name}`);
    if (kind === "box") state.value = clean(field.value ?? field.textContent);
    if (field.type === "password") state.value &&= "***";
    if (kind === "select" && field.options) {
      state.options = [...field.options].map((option) => clean(option.label));
      state.value = [...field.selectedOptions].map((option) => clean(option.label)).join(", ");
    }
    if (kind === "check" || kind === "radio") state.on = field.checked ?? aria("checked") === "true";
    if (field.matches(":disabled") || aria("disabled") === "true") state.disabled = true;
    if (aria("selected") === "true" || aria("pressed") === "true") state.selected = true;
    if (aria("expanded")) state.expanded = aria("expanded") === "true";
    if (el.localName === "summary") state.expanded = el.parentElement.open;
    return state;
  };

  // The page as a flat list in document order, nested by `depth`: text runs {text}, what can be acted on {id, kind,
  // label, ...state}, and blocks that hold some of these. Only what lies in view; `above` and `below` count the rest.
  const look = () => {
    const nodes = [], elements = [];
    let above = 0, below = 0, run = null;
    const view = {left: 0, top: 0, right: innerWidth, bottom: innerHeight, scrolls: true};

    const shift = (r, {x, y}) => x || y ? new DOMRect(r.x + x, r.y + y, r.width, r.height) : r;
    const within = (r, clip, scrolls) => ({left: Math.max(clip.left, r.left), top: Math.max(clip.top, r.top),
      right: Math.min(clip.right, r.right), bottom: Math.min(clip.bottom, r.bottom), scrolls});
    const inView = (r, clip) => {  // what scrolling would reveal is counted; 1 px is how pages hide text from sight
      if (r.width < 2 || r.height < 2 || r.right < clip.left + 2 || r.left > clip.right - 2) return false;
      if (r.bottom >= clip.top + 2 && r.top <= clip.bottom - 2) return true;
      if (clip.scrolls && r.top < clip.top) above++;
      else if (clip.scrolls) below++;
      return false;
    };
    const put = (node, r, el) => {
      node.box = [r.left, r.top, r.width, r.height].map(Math.round);
      for (const name of ATTRIBUTES) {
        const value = el.getAttribute(name);
        if (value && !(name === "value" && el.type === "password")) (node.attributes ||= {})[name] = value;
      }
      nodes.push(node);
    };
    const flush = () => {  // end the text run
      if (!run) return;
      const {text, el, first, last, at} = run;
      run = null;
      const range = el.ownerDocument.createRange();
      range.setStartBefore(first);
      range.setEndAfter(last);
      const r = shift(range.getBoundingClientRect(), at);
      if (inView(r, at.clip)) put({depth: at.depth, tag: el.localName, text: clean(text)}, r, el);
    };
    const write = (text, node, el, at) => {
      if (!run && !text.trim()) return;
      run ||= {text: "", el, first: node, at};
      if (text.trim()) run.last = node;
      run.text += text;
    };
    // at: {clip, depth, x, y (the frame's offset), quiet (the text is shown elsewhere)}
    const walk = (el, at, parent) => {
      const tag = el.localName;
      if (tag === "br" && run) run.text += " ";
      if (tag === "br" || SKIP.has(tag)) return;
      const style = getComputedStyle(el);
      if (style.opacity === "0" || style.display !== "contents" && !el.checkVisibility()) return;
      const r = shift(el.getBoundingClientRect(), at), block = isBlock(el, style);
      const visible = style.visibility === "visible", known = gui.kind?.(el);
      if (known === null) return;
      at = {...at};
      if (style.position === "fixed") at.clip = {...view, scrolls: false};
      const kind = visible && (known ?? kindOf(el, style, parent));
      if (kind) {
        flush();
        if (!inView(r, at.clip)) return;
        elements.push(el);
        const label = labelOf(tag === "label" ? el.control : el), own = gui.label?.(el, label);
        return put({depth: at.depth, tag, id: elements.length, kind, label: own ?? label, ...stateOf(el, kind)}, r, el);
      }
      if (block) flush();
      else if (run && (tag === "td" || tag === "th")) run.text += " ";
      if (style.overflowX !== "visible" && block && tag !== "body")
        at.clip = within(r, at.clip, /auto|scroll/.test(style.overflowY));
      if (tag === "label" && el.control && shown(el.control)) at.quiet = true;
      const start = nodes.length;
      if (block && visible && r.height > 1) { put({depth: at.depth, tag}, r, el); at.depth++; }
      if (tag === "img" && visible && el.alt) write(` ${el.alt} `, el, el, at);
      const inner = tag === "iframe" && el.contentDocument?.body;
      if (inner)
        walk(inner, {...at, clip: within(r, at.clip, true), x: r.left + el.clientLeft, y: r.top + el.clientTop});
      for (const child of childrenOf(el)) {
        if (tag === "details" && !el.open && child.localName !== "summary") continue;
        if (child.nodeType === 1) walk(child, at, style);
        else if (child.nodeType === 3 && visible && !at.quiet) write(child.data, child, el, at);
      }
      if (block) flush();
      const last = nodes.length === start + 1 && nodes[start];
      if (last && last.text === undefined && !last.id) nodes.pop();  // a block that holds nothing
    };
    if (document.body) walk(document.body, {clip: view, depth: 0, x: 0, y: 0, quiet: false});
    flush();
    gui.elements = elements;
    return {nodes, above, below};
  };

  gui.observe = async ({sites, error = ""}) => {
    gui.sites = sites;
    await gui.rest();
    await gui.ready?.();
    const status = performance.getEntriesByType("navigation")[0]?.responseStatus || 0;
    const {refused, opened} = gui, url = location.href, title = document.title, report = gui.report?.();
    const reply = {url, title, status, error: error || refused, opened, report, ...look()};
    gui.refused = "";
    gui.opened = false;
    return JSON.stringify(reply);
  };

  // ---- What the agent does. An action throws a string where the page refuses it. ----

  const isPoint = (id) => id !== null && id.includes(",");
  const find = (id) => {  // an id, "120,80": what is seen there, or "focus": what keys go to
    if (id === "focus") return document.activeElement;
    if (isPoint(id)) return document.elementFromPoint(...parse(id).flatMap(({x, y}) => [x, y]));
    const el = gui.elements[id - 1];
    if (!el) throw `there is no element ${id} on this page`;
    if (!el.isConnected) throw `element ${id} is gone`;
    if (el.matches(":disabled")) throw `element ${id} is disabled`;
    return el;
  };
  const reach = (el) => {  // a point of the element (in its document's coordinates) that nothing covers; what is there
    for (const scroll of [false, true]) {
      if (scroll) el.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});
      for (const r of el.getClientRects()) {  // a link over two lines has two
        const x = r.left + r.width / 2, y = r.top + r.height / 2;
        let hit = el.ownerDocument.elementFromPoint(x, y), inner;
        while ((inner = hit?.shadowRoot?.elementFromPoint(x, y)) && inner !== hit) hit = inner;
        for (let node = hit; node; node = node.parentNode || node.host)
          if (node === el) return {x, y, hit};
          else if (node.localName === "label" && node.control === el) return {x, y, hit: el};
        if (hit?.contains(el) && r.width && r.height) return {x, y, hit: el};
      }
    }
    throw "another element covers it";
  };
  const parse = (argument) => {  // "120,80" -> [{x: 120, y: 80}]; of the top document
    const numbers = argument.split(",").map(Number);
    const points = numbers.filter((_, i) => i % 2).map((y, i) => ({x: numbers[2 * i], y}));
    const inside = ({x, y}) => x >= 0 && x < innerWidth && y >= 0 && y < innerHeight;
    if (!points.every(inside)) throw `${argument} is out of view`;
    return points;
  };
  // As a mouse does, on the innermost element there: a list item with role=tab may leave the click to the link in it.
  const press = (el, button = 0, {x, y, hit} = reach(el)) => {
    const fire = (type, buttons = 0) => {
      const Kind = type.startsWith("pointer") ? PointerEvent : MouseEvent;
      const enters = type.endsWith("enter");  // it does not bubble
      return (enters ? el : hit).dispatchEvent(new Kind(type, {
        bubbles: !enters, cancelable: true, composed: true, view: el.ownerDocument.defaultView,
        detail: 1, clientX: x, clientY: y, button: buttons || type.endsWith("up") ? button : 0, buttons,
        pointerType: "mouse", isPrimary: true}));
    };
    for (const type of "pointerover pointerenter mouseover mouseenter pointermove mousemove".split(" ")) fire(type);
    fire("pointerdown", button || 1);
    if (fire("mousedown", button || 1)) el.focus?.({preventScroll: true});
    fire("pointerup");
    fire("mouseup");
    fire(button ? "contextmenu" : "click", button);
    return fire;
  };
  const pressAt = (argument, button) => {
    const [point] = parse(argument);
    const hit = document.elementFromPoint(point.x, point.y);
    return press(hit, button, {...point, hit});
  };
  const pressTwice = (once) => {
    once();
    once()("dblclick");
  };
  const boxOf = (el) => el.closest("input, textarea, [contenteditable]") || el.closest("label")?.control || el;
  const type = (el, text) => {
    const box = el.isContentEditable || el.localName === "textarea" || el.localName === "input" && kindOf(el) === "box";
    if (!box || el.type === "file") throw "text can only be typed into a box";
    if (el.readOnly) throw "the box is read-only";
    el.focus({preventScroll: true});
    if (el.isContentEditable) el.textContent = text;
    else {  // past the setter that a framework puts on the element itself
      const {set} = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(el), "value");
      set.call(el, el.maxLength >= 0 ? text.slice(0, el.maxLength) : text);
    }
    el.dispatchEvent(new InputEvent("input", {bubbles: true, composed: true, data: text, inputType: "insertText"}));
    el.dispatchEvent(new Event("change", {bubbles: true}));
  };
  const enter = (el) => {
    const key = (name) => el.dispatchEvent(new KeyboardEvent(name, {
      key: "Enter", code: "Enter", keyCode: 13, charCode: 13, which: 13, bubbles: true, cancelable: true,
      composed: true}));
    if (key("keydown") && key("keypress") && el.localName === "input" && el.form) {
      const submit = [...el.form.elements].find((field) => field.type === "submit" || field.type === "image");
      if (submit) submit.click(); else el.form.requestSubmit();
    }
    key("keyup");
  };
  const select = (el, text) => {
    if (el.localName !== "select") throw "this element has no options";
    const wanted = clean(text).toLowerCase();
    const names = [...el.options].map((option) => clean(option.label).toLowerCase());
    let index = names.indexOf(wanted);
    if (index < 0 && wanted) index = names.findIndex((name) => name.includes(wanted));
    if (index < 0) throw `there is no option "${clean(text)}"`;
    if (el.options[index].disabled) throw `option "${clean(text)}" is disabled`;
    el.focus({preventScroll: true});
    if (el.multiple) el.options[index].selected = true; else el.selectedIndex = index;
    for (const name of ["input", "change"]) el.dispatchEvent(new Event(name, {bubbles: true, composed: true}));
  };
  const scroll = (el, sign) => {  // what holds `el`, else the page, else its largest part that scrolls
    const page = document.scrollingElement, area = (box) => box.clientWidth * box.clientHeight;
    const scrolls = (box) => (sign < 0 ? box.scrollTop > 0 : box.scrollTop + box.clientHeight < box.scrollHeight - 1)
      && (box === page || /auto|scroll/.test(getComputedStyle(box).overflowY));
    while (el && !scrolls(el)) el = el.parentElement;
    const parts = () => [...document.querySelectorAll("body *")].filter(scrolls).sort((a, b) => area(b) - area(a));
    const box = el || scrolls(page) && page || parts()[0];
    if (!box) throw `the page does not scroll further ${sign < 0 ? "up" : "down"}`;
    box.scrollBy({top: sign * 2 / 3 * Math.min(box.clientHeight, innerHeight), behavior: "instant"});
    // The browser's own event comes with the next frame: too late to be seen, and without compositing never.
    (box === page ? document : box).dispatchEvent(new Event("scroll", {bubbles: box === page}));
  };
  const ACTIONS = {  // (element, argument, point): at the point where there is one
    "Click": (el, _, at) => { at ? pressAt(at) : press(el); },
    "Right Click": (el, _, at) => { at ? pressAt(at, 2) : press(el, 2); },
    "Double Click": (el, _, at) => pressTwice(() => at ? pressAt(at) : press(el)),
    "Type": (el, text) => type(boxOf(el), text),
    "Search": (el, text) => { type(boxOf(el), text); enter(boxOf(el)); },
    "Select Dropdown Option": (el, text) => select(el.closest("select") || el, text),
    "Scroll Up": (el) => scroll(el, -1),
    "Scroll Down": (el) => scroll(el, 1),
    "Focus": (el) => el.focus(),
    "Wait": () => {},
  };
  const attempt = (action) => {  // {error} where the page refuses it
    try {
      return action() || {};
    } catch (error) {
      if (typeof error !== "string") throw error;
      return {error};
    }
  };
  gui.act = ({name, element, argument, sites}) => {
    gui.sites = sites;
    const at = isPoint(element) ? element : /Click$/.test(name) && element === null ? argument : null;
    const act = () => ACTIONS[name](element === null ? null : find(element), argument, at);
    return gui.observe({sites, ...attempt(act)});
  };
  gui.visit = ({url, sites}) => {  // as a script of the page would
    gui.sites = sites;
    location.href = url;
    return gui.observe({sites});
  };
  const pointOf = (id) => {  // where a real mouse meets an element, in the viewport
    const el = find(id);
    let {x, y} = reach(el);
    for (let w = el.ownerDocument.defaultView; w !== window; w = w.parent) {
      const r = w.frameElement.getBoundingClientRect();
      x += r.left + w.frameElement.clientLeft;
      y += r.top + w.frameElement.clientTop;
    }
    return {x, y};
  };
  gui.locate = ({name, element, argument}) => JSON.stringify(attempt(() => {  // where a real mouse has to go
    const pointsOf = (id) => isPoint(id) ? parse(id) : [pointOf(id)];
    if (element === null) return {points: parse(argument)};
    if (name !== "Drag") return {points: pointsOf(element)};
    if (isPoint(element) || isPoint(argument)) return {points: [...pointsOf(element), ...pointsOf(argument)]};
    const where = () => find(element).getBoundingClientRect();
    const [, from] = [argument, element].map(pointOf), before = where();  // it may have scrolled to both
    const to = pointOf(argument), after = where();
    if (before.x !== after.x || before.y !== after.y) throw "the two are too far apart to be seen at once";
    return {points: [from, to]};
  }));
  // An episode from its beginning in one call: `gui.start`, then actions, each on what is seen after the one before.
  gui.play = async ({start, actions, sites}) => {
    gui.sites = sites;
    await gui.rest();  // the document is complete
    gui.start(start);
    let reply = await gui.observe({sites});
    for (const action of actions) reply = await gui.act({...action, sites});
    return reply;
  };
  gui.traverse = async ({step, ...rest}) => {  // back or forward: the document ends, or is another page from now on
    const arrived = new Promise((done) => {
      window.addEventListener("popstate", done, {once: true});
      document.addEventListener("load", (event) => event.target.localName === "iframe" && done(), {capture: true});
    });
    history.go(step);
    await arrived;
    return gui.observe(rest);
  };
}
