// What an agent sees of a page and does to it: `__gui.observe()`, `act()`, `locate()`, `typed()`, `aim()`, `visit()`,
// `traverse()` for browser.py. An init script like settle.js, which comes first. It keeps elements in `__gui.elements`
// and adds nothing to the page.
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

  // What this stands on as it was before the page's scripts ran, who may give Array.prototype.map or
  // getBoundingClientRect another meaning, or JSON.stringify (old libraries give arrays a toJSON of their own). It is
  // put back for as long as a function made by `natively` runs. Our own pages change nothing.
  const {plain} = gui, {apply, ownKeys, deleteProperty} = Reflect;
  const {getComputedStyle, DOMRect, URL, performance, PointerEvent, MouseEvent, KeyboardEvent, InputEvent} = window;
  const {defineProperty, getOwnPropertyDescriptor} = Object;
  const iteratorOf = (list) => Object.getPrototypeOf(list[Symbol.iterator]());
  const owners = gui.embedded ? [] : [Math, JSON, Reflect, [], "", new Map(), new Set(), "".matchAll(/x/g)].map(
    (one) => one[Symbol.iterator] ? iteratorOf(one) : one).concat([Object, Function, Array, String, RegExp, Number,
    Boolean, Map, Set, WeakMap, EventTarget, Node, CharacterData, Element, HTMLElement, HTMLInputElement,
    HTMLFormElement, HTMLTextAreaElement, HTMLSelectElement, Document, DocumentFragment, ShadowRoot, Range, DOMRect,
    DOMRectReadOnly, CSSStyleDeclaration, NodeList, HTMLCollection, DOMTokenList].flatMap(
      (kind) => [kind, kind.prototype]));
  const natives = owners.flatMap((owner) => ownKeys(owner).map(
    (key) => [owner, key, Object.setPrototypeOf(getOwnPropertyDescriptor(owner, key), null)]));
  const builtIn = [Array, String, Number, Boolean].map(({prototype}) => prototype);
  const own = Object.prototype, known = new Set(ownKeys(own)), isKnown = known.has.bind(known);
  const set = (owner, key, descriptor) => {
    try {
      if (descriptor) defineProperty(owner, key, descriptor); else deleteProperty(owner, key);
    } catch {}  // it is frozen as it is
  };
  gui.exchange = () => {  // the natives come in; what was there instead. (No method of an array or object in here.)
    const theirs = [];
    let count = 0;
    const change = (owner, key, found, wanted) => {
      theirs[count++] = [owner, key, found];
      set(owner, key, wanted);
    };
    const keys = ownKeys(own);
    for (let i = 0; i < keys.length; i++)
      if (!isKnown(keys[i])) change(own, keys[i], getOwnPropertyDescriptor(own, keys[i]));
    for (let i = 0; i < natives.length; i++) {
      const owner = natives[i][0], key = natives[i][1], wanted = natives[i][2];
      const found = getOwnPropertyDescriptor(owner, key);
      if (!found || found.value !== wanted.value || found.get !== wanted.get) change(owner, key, found, wanted);
    }
    for (let i = 0; i < builtIn.length; i++) {
      const found = getOwnPropertyDescriptor(builtIn[i], "toJSON");
      if (found) change(builtIn[i], "toJSON", found);
    }
    return theirs;
  };
  gui.giveBack = (theirs) => {
    for (let i = theirs.length - 1; i >= 0; i--) set(theirs[i][0], theirs[i][1], theirs[i][2]);
  };
  const natively = (f) => gui.embedded ? f : (...args) => {
    const theirs = gui.exchange(), inFrames = gui.frames().slice(1).map(({__gui: frame}) => [frame, frame.exchange()]);
    try {
      return apply(f, null, args);
    } finally {
      for (const [frame, things] of inFrames) frame.giveBack(things);
      gui.giveBack(theirs);
    }
  };

  // Elements that listen to clicks can be acted on, whatever their tag.
  const heard = new WeakMap();  // element -> the types of these events
  const keyed = new WeakSet();  // who listens to keys
  gui.heard = (el) => heard.get(el);
  gui.keyed = (target) => keyed.has(target) || target.onkeydown || target.onkeypress || target.onkeyup;
  const closed = new WeakMap();  // shadow roots that the page's scripts keep to themselves
  gui.shadow = (el) => el.shadowRoot || closed.get(el);
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function (options) {
    const root = attach.call(this, options);
    if (root.mode === "closed") closed.set(this, root);
    return root;
  };
  const native = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (/^(click|dblclick|(mouse|pointer)(down|up))$/.test(type)) {
      if (this instanceof Element) heard.set(this, (heard.get(this) || new Set()).add(type));
      if (!gui.embedded && [window, document, document.documentElement, document.body].includes(this))
        gui.hearsAll = true;
    }
    if (/^key(down|press|up)$/.test(type)) keyed.add(this || window);
    return native.call(this, type, ...rest);
  };

  // ---- What the agent sees ----

  const SKIP = new Set(
    "head script style noscript noframes template link meta hr option optgroup datalist".split(" "));
  const INLINE = new Set(("a abbr b bdi bdo button cite code data del dfn em font i img input ins kbd label mark "
    + "output picture q s samp select slot small span strike strong sub sup svg td textarea th time u var").split(" "));
  const ROLES = {button: "button", link: "link", checkbox: "check", switch: "check", menuitemcheckbox: "check",
    radio: "radio", menuitemradio: "radio", tab: "item", option: "item", menuitem: "item", treeitem: "item"};
  const WIDGETS = [...Object.keys(ROLES), "gridcell", "row"].map((role) => `[role=${role}]`).join();
  // What holds such things, and is none itself.
  const HOLDERS = ("alertdialog dialog document feed grid group list listbox log main menu menubar radiogroup region "
    + "tablist table toolbar tree treegrid").split(" ").map((role) => `[role=${role}]`).join();
  const ACTIVE = "a[href],button,input,select,textarea,summary,[role=button],[role=link],[role=menuitem],[onclick]";
  const ATTRIBUTES = "title value type placeholder data-value data-testid data-label data-status".split(" ");
  const FIELD = /^(input|select|textarea)$/, PUSH = /^(submit|button|reset|image)$/;
  const DRAWN = /^(checkbox|radio|file)$/;  // which styles replace
  const FRAME = /^(iframe|frame|object)$/;
  const LONG = 160;  // characters
  const LONG_TITLE = 1000, LONGEST = 20000;  // characters of one text
  const clean = (text) => `${text}`.slice(0, LONGEST).replace(/\s+/g, " ").trim();
  const guiOf = (el) => el.ownerDocument.defaultView?.__gui || gui;
  const childrenOf = (el) => {  // as they are shown: a shadow tree instead of what it hosts, which its slots bring back
    const assigned = el.localName === "slot" && el.assignedNodes();
    return assigned.length ? assigned : (guiOf(el).shadow(el) || el).childNodes;
  };
  // What holds an element: out of its shadow tree and its frame.
  const parentOf = (node, el = plain(node)) => el.parentElement || el.getRootNode().host
    || el.ownerDocument.defaultView?.frameElement;
  const isBlock = (el, style) => !INLINE.has(el.localName) && !/^(inline|contents|table-cell)/.test(style.display);
  // A cell, or what stands beside another by its style, in a flex box for instance.
  const isApart = (el, style) => /^t[dh]$/.test(el.localName) || /^(block|flex|grid)$/.test(style.display);
  const shown = (el, node = el) => getComputedStyle(node).display === "contents"
    || el.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const rectOf = (el, style = getComputedStyle(el)) => {  // of its contents, where it has no box that would hold them
    const r = el.getBoundingClientRect();
    if (r.width >= 2 && r.height >= 2 || style.display !== "contents" && style.overflowX !== "visible") return r;
    const range = plain(el.ownerDocument).createRange();
    range.selectNodeContents(el);
    return range.getBoundingClientRect();
  };
  const deepest = (root, x, y) => {  // what is seen at a point of a document, into its shadow trees
    let hit = plain(root).elementFromPoint(x, y), inner;
    while ((inner = hit && guiOf(hit).shadow(hit)?.elementFromPoint(x, y)) && inner !== hit) hit = inner;
    return hit;
  };
  const aboveOf = (node, plainly = plain(node)) => plainly.parentNode || plainly.host;
  const isIn = (el, outer) => {
    while (el && el !== outer) el = parentOf(el);
    return el === outer;
  };
  const leadsTo = (hit, el) => {  // whether a click on `hit` is one on `el`
    for (let node = hit; node; node = aboveOf(node))
      if (node === el || node.localName === "label" && node.control === el) return true;
    return false;
  };
  const hitOf = (el) => {  // what a click on its middle meets: itself, another element, or null where that is not seen
    const r = el.getBoundingClientRect();
    let x = r.left + r.width / 2, y = r.top + r.height / 2, hit = deepest(el.ownerDocument, x, y);
    if (r.width < 2 || r.height < 2) return null;
    if (!leadsTo(hit, el)) return hit;
    for (let frame, doc = el.ownerDocument; (frame = doc.defaultView?.frameElement); doc = frame.ownerDocument) {
      const around = frame.getBoundingClientRect();
      x += around.left + frame.clientLeft;
      y += around.top + frame.clientTop;
      hit = deepest(frame.ownerDocument, x, y);
      if (hit !== frame) return hit;
    }
    return el;
  };
  const takesClicks = (el) => hitOf(el) === el;
  // A check box, radio button or file box that a style has replaced: what is drawn in its stead is a label of it.
  const isReplaced = (control) => {
    if (!DRAWN.test(control.type)) return false;
    if (!shown(control)) return true;
    const r = control.getBoundingClientRect();
    return r.width < 2 || r.height < 2 || r.right < 0;
  };

  const textOf = (el, skip) => {  // visible text; not innerText, which applies the style's text-transform
    let text = "";
    for (const child of childrenOf(el)) {
      const node = plain(child);
      if (text.length > LONGEST) break;
      if (node.nodeType === 3) text += node.data;
      if (node.nodeType !== 1 || skip?.has(child) || SKIP.has(node.localName) || FIELD.test(node.localName)) continue;
      if (node.localName === "br") text += " ";
      else if (shown(node, child)) {
        const style = getComputedStyle(child), apart = isApart(node, style) || isBlock(node, style) ? " " : "";
        text += apart + (node.localName === "img" ? ` ${node.alt} ` : textOf(node, skip)) + apart;
      }
    }
    return text;
  };
  const labelOf = (el, inner) => {  // the first of these that is not empty; `inner`: what has a label of its own
    const field = FIELD.test(el.localName), attribute = (name) => () => el.getAttribute(name);
    const sources = [
      () => field || el.isContentEditable ? "" : textOf(el, inner) || inner && textOf(el),
      () => field && PUSH.test(el.type) && (el.value || { submit: "submit", reset: "reset" }[el.type]),
      () => [...el.labels || []].map((label) => textOf(label, new Set([el]))).join(" "),
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
  // Clicks that are heard for it by the whole document. Where a library does not say so, by what the page has noted on it
  // for its listener: an action, or, as on others beside it, which one it is.
  const NOTES = /^(action|toggle|dismiss|href|url|link|click|command)$|[a-z](Action|Toggle|Href|Url|Link|Click|Command)$/;
  const NAMED = /^(?!test|component|react|track)(\w+(Id|Key|Index|Value|Date)|id|key|index|value|date|day|row|item)$/;
  const isHeardFor = (el) => {
    const {hearsAll, chosen} = guiOf(el);
    if (!hearsAll) return false;
    if (chosen?.has(el) || el.$$click || el.__click) return true;  // jQuery; Solid, Svelte
    if (!/^(li|tr|td|div|span|article)$/.test(el.localName) || !el.attributes.length) return false;
    const keys = Object.keys(el.dataset), beside = el.nextElementSibling || el.previousElementSibling;
    const isOne = keys.some((key) => NOTES.test(key) || NAMED.test(key) && beside?.dataset && key in beside.dataset);
    return isOne && !el.querySelector(`${ACTIVE},h1,h2,h3,h4,p,ul,ol,table`) && el.textContent.trim();
  };
  const findChosen = (root) => {  // what jQuery hears at the root, by its selectors; whether anything is heard there
    const doc = plain(root), {jQuery, __gui: own} = doc.defaultView || {}, roots = [root, doc.documentElement, doc.body];
    if (!own || own.embedded) return;
    own.hearsAll ||= [doc.defaultView, ...roots].some((root) => root?.onclick);
    own.chosen = new Set();
    if (own.hearsAll && jQuery?._data) try {
      for (const place of roots) for (const {selector} of jQuery._data(place, "events")?.click || [])
        if (selector) for (const el of jQuery(place).find(selector).toArray()) own.chosen.add(el);
    } catch {}  // the page's own code, of any shape
  };
  const listens = (el) => el.onclick || guiOf(el).heard(el) || isHeardFor(el);
  const isStop = (el) => el.hasAttribute("tabindex") && el.tabIndex >= 0;
  const startsPointer = (el, style = getComputedStyle(el)) => {  // from here on in, the mouse shows a hand
    const above = el.parentElement;
    return style.cursor === "pointer" && !(above && getComputedStyle(above).cursor === "pointer");
  };
  const offers = (el) => {  // whether it can be acted on, as part of something that can
    if (!el.checkVisibility({visibilityProperty: true, opacityProperty: true})) return false;
    return el.matches(WIDGETS) || listens(el) || isStop(el) || startsPointer(el)
      || el.hasAttribute("tabindex") && !el.firstElementChild && el.textContent.trim();
  };
  // What can be acted on inside something that can, besides: of a link or button that is what can be by its tag.
  const partsOf = (el, kind = "item") => {
    const all = kind === "item" ? "*" : ACTIVE, parts = [...el.querySelectorAll(all)].filter(
      (part) => part.matches(ACTIVE) ? part.checkVisibility() : kind === "item" && offers(part));
    const [first, second] = parts;
    return new Set(first && !second && clean(textOf(first)) === clean(textOf(el)) ? [] : parts);
  };
  // The rows of a table or list that listens in their stead: nothing else shows that they can be clicked.
  const LISTS = /^(table|tbody|ul|ol|menu)$/;
  const rowsOf = (el) => {
    const filled = (cell) => cell.textContent.trim();
    const isWeek = ({cells}) => cells.length > 4 && [...cells].every((cell) => filled(cell).length < 3);
    if (/^t/.test(el.localName)) {
      const rows = [...el.querySelectorAll("tr")].filter((row) => row.querySelector(":scope > td"));
      return rows.flatMap((row) => isWeek(row) ? [...row.cells].filter(filled) : row);
    }
    const [first, ...rest] = el.children, key = first && Object.keys(first.dataset || {})[0];
    if (LISTS.test(el.localName)) return [...el.children].filter((child) => child.localName === "li");
    const alike = (child) => child.localName === first.localName && child.dataset && key in child.dataset;
    return key && rest.length && rest.every(alike) ? [...el.children] : [];
  };
  // Whether what can be clicked is only the place where clicks on its parts are heard. `rows` gets those of its parts
  // that nothing else shows.
  const delegates = (el, pointer, rows) => {
    const holds = el.matches(HOLDERS) && el.firstElementChild, isList = LISTS.test(el.localName), r = rectOf(el);
    const isActive = el.querySelector(ACTIVE), isLarge = r.width * r.height > innerWidth * innerHeight / 2;
    if (isActive && !isList) return true;  // a card that holds links is no link itself
    const parts = [...el.querySelectorAll("*")].filter((part) => !part.matches(ACTIVE) && offers(part));
    for (const part of parts) if (part.matches("[tabindex]:not(:has(*))")) rows.add(part);
    if (parts.length && (isList || holds || isLarge)) return true;
    if (parts.length) {  // it may be a card with a button in it
      const own = clean(textOf(el, new Set(parts))), types = guiOf(el).heard(el)?.size || 0;
      return !pointer && !(listens(el) && types < 3 && own.length * 2 > clean(textOf(el)).length);
    }
    const found = !pointer || isList || holds ? rowsOf(el) : [];
    for (const row of found) if (clean(textOf(row, new Set(row.querySelectorAll(ACTIVE))))) rows.add(row);
    if (found.length || holds || isActive) return true;
    if (pointer || el.onclick) return false;
    const blocks = [...el.querySelectorAll("h1,h2,h3,h4,p,ul,ol,table,section,div")];
    if (listens(el)) return isLarge && blocks.length > 1;
    return blocks.length > 1 || /auto|scroll/.test(getComputedStyle(el).overflowY);
  };
  const kindOf = (el, style, parent, rows) => {  // link, button, box, file, select, check, radio, item; "": none
    const tag = el.localName, role = ROLES[el.getAttribute("role")];
    if (tag === "input") {
      if (el.type === "hidden") return "";
      return PUSH.test(el.type) ? "button" : {checkbox: "check", radio: "radio", file: "file"}[el.type] || "box";
    }
    if (tag === "textarea") return "box";
    if (tag === "select") return "select";
    if (role) return role;
    if (tag === "a" && (el.hasAttribute("href") || el.href)) return "link";
    if (tag === "button" || tag === "summary") return "button";
    if (el.isContentEditable) return el.parentElement?.isContentEditable && tag !== "body" ? "" : "box";
    if (tag === "label" && el.control) return isReplaced(el.control) ? kindOf(el.control) : "";
    if (tag === "body" || tag === "html" || FRAME.test(tag)) return "";
    if (rows?.has(el)) return "item";
    const pointer = style.cursor === "pointer" && parent?.cursor !== "pointer";
    const cell = /^(gridcell|row)$/.test(el.getAttribute("role")) && (el.hasAttribute("tabindex") || el.ariaSelected);
    return (listens(el) || isStop(el) || pointer || cell) && !delegates(el, pointer, rows) ? "item" : "";
  };
  // What a box takes, where it does not take any text.
  const FORMS = {date: "YYYY-MM-DD", month: "YYYY-MM", week: "YYYY-Www", time: "HH:MM", color: "#rrggbb",
    "datetime-local": "YYYY-MM-DDTHH:MM", number: "a number"};
  const formOf = ({type, min, max, step}) => type !== "range" ? FORMS[type]
    : `${min || 0} to ${max || 100}${step && step !== "1" ? ` by ${step}` : ""}`;
  const hasForm = (el) => el.localName === "input" && el.type !== "number" && Boolean(formOf(el));
  const inSight = (el, value) => {  // about what a box shows of a very long text
    const {scrollTop, scrollHeight, clientHeight} = el, {top} = el.getBoundingClientRect();
    if (value.length < 20 * LONG || !scrollHeight) return value;
    const at = (y) => Math.round(value.length * Math.min(y / scrollHeight, 1));
    const start = at(scrollTop + Math.max(-top, 0)), end = at(scrollTop + Math.min(clientHeight, innerHeight - top));
    return (start ? "... " : "") + value.slice(start, end);
  };
  const OPTIONS = 2000;  // of a select
  const stateOf = (el, kind) => {
    const field = el.localName === "label" ? el.control : el, state = {};
    const aria = (name) => el.getAttribute(`aria-${name}`);
    const written = field.value ?? textOf(field);
    if (kind === "box") state.value = clean(field.localName === "input" ? written : inSight(field, written));
    if (kind === "box" && hasForm(field)) state.form = formOf(field);
    if (kind === "file") state.value = [...field.files].map((file) => file.name).join(", ");
    if (field.type === "password") state.value &&= "***";
    if (kind === "select" && field.options) {
      state.options = [...field.options].slice(0, OPTIONS).map((option) => clean(option.label));
      state.value = [...field.selectedOptions].map((option) => clean(option.label)).join(", ");
    }
    if (kind === "check" || kind === "radio") state.on = Boolean(field.checked ?? aria("checked") === "true");
    if (field.matches(":disabled") || aria("disabled") === "true") state.disabled = true;
    if (aria("selected") === "true" || aria("pressed") === "true") state.selected = true;
    if (aria("expanded")) state.expanded = aria("expanded") === "true";
    if (el.localName === "summary") state.expanded = el.parentElement.open;
    return state;
  };

  // The innermost modal dialog that is open, by its own means or by a script's.
  const modalOf = (root) => {
    const doc = plain(root);
    let el = doc.activeElement;
    while (el && guiOf(el).shadow(el)?.activeElement) el = guiOf(el).shadow(el).activeElement;
    for (; el; el = plain(el).parentElement || plain(el).getRootNode().host)
      if (plain(el).matches(":modal")) return el;
    return [...doc.querySelectorAll("dialog:modal")].at(-1) || [...doc.querySelectorAll("[aria-modal=true]")].filter(
      (el) => el.checkVisibility({visibilityProperty: true, opacityProperty: true}) && rectOf(el).width > 1).at(-1);
  };
  // What lies over the whole view, such as a question about cookies, whatever it is made of.
  const coverOf = (root) => {
    const doc = plain(root), width = doc.documentElement.clientWidth, height = doc.defaultView.innerHeight;
    const covers = (el) => {
      const r = plain(el).getBoundingClientRect(), {position} = getComputedStyle(el);
      return /fixed|absolute/.test(position) && el !== doc.body && r.left < 2 && r.top < 2
        && r.right > width - 2 && r.bottom > height - 2;
    };
    for (const [across, down] of [[0.5, 0.5], [0.02, 0.5], [0.98, 0.98]])
      for (let el = deepest(root, width * across, height * down); el;
        el = plain(el).parentElement || plain(el).getRootNode().host)
        if (covers(el)) return el;
    return null;
  };
  const isBehind = (el, what) => {  // "inert", or what a "modal" dialog or this element covers
    if (what === "inert") return true;
    const hit = hitOf(el);
    return hit !== el && (what === "modal" || isIn(hit, what));
  };
  // What cannot be seen itself may still take a click or a text: an input over the one that is drawn, or what holds
  // only this one.
  const takesInput = (el) => {
    const field = "input:not([type=hidden]),select,textarea", inner = [...el.querySelectorAll(field)];
    const input = el.matches(field) ? el : inner.length === 1 && !el.querySelector("a,button,p") && inner[0];
    const standsIn = (label) => shown(label) && rectOf(label).width >= 2;
    if (!input || DRAWN.test(input.type) && [...input.labels].some(standsIn)) return false;
    const r = input.getBoundingClientRect(), isSeen = r.bottom > 0 && r.top < innerHeight;
    return isSeen ? takesClicks(input) : getComputedStyle(input).pointerEvents !== "none";
  };

  // A text that is higher than where it is seen, in pieces {text, r, count (of lines)}: what lies in view line by line,
  // or by LONG characters, the rest as a whole.
  const linesOf = ({el, pieces, at}, range) => {
    const lines = [], top = at.clip.top - at.y, bottom = at.clip.bottom - at.y;
    const rectAt = (node, k) => {  // of the first character from here on that is seen: collapsed blanks are not
      for (; k < node.data.length; k++) {
        range.setStart(node, k);
        range.setEnd(node, k + 1);
        const [r] = range.getClientRects();
        if (r?.height) return r;
      }
      return {top: Infinity, bottom: Infinity};
    };
    const first = (node, isIt) => {  // the place of the first character of which it is true
      let low = 0, high = node.data.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (isIt(rectAt(node, middle))) high = middle; else low = middle + 1;
      }
      return low;
    };
    const put = (node, from, to) => {
      const text = node.data.slice(from, to), last = lines.at(-1);
      if (!text.trim()) {
        if (last) last.text += text;
        return;
      }
      range.setStart(node, from);
      range.setEnd(node, to);
      const r = range.getBoundingClientRect(), isSame = (a, b) => Math.abs(a - b) < 4;
      if (last && isSame(r.top, last.r.top) && isSame(r.bottom, last.r.bottom) && last.text.length < LONG) {
        last.text += text;  // on the same line, as the words of a program in their colours
        last.r = new DOMRect(last.r.x, last.r.y, Math.max(r.right - last.r.x, last.r.width), r.height);
      } else lines.push({text, r, count: text.trim().split("\n").length});
    };
    for (const node of pieces) {
      if (node.nodeType !== 3) continue;
      range.selectNodeContents(node);
      const whole = range.getBoundingClientRect();
      if (whole.bottom < top + 2 || whole.top > bottom - 2) {
        put(node, 0, node.data.length);
        continue;
      }
      const start = first(node, (r) => r.bottom >= top + 2), end = first(node, (r) => r.top > bottom - 2);
      put(node, 0, start);
      const kept = /^pre/.test(getComputedStyle(node.parentElement).whiteSpace);
      const parts = kept ? /[^\n]*\n?/g : new RegExp(`[^]{1,${LONG}}(?:\\s|$)|[^]{1,${LONG}}`, "g");
      let from = start;
      for (const [part] of node.data.slice(start, end).matchAll(parts)) put(node, from, from += part.length);
      put(node, end, node.data.length);
    }
    return lines;
  };

  // The page as a flat list in document order, nested by `depth`: text runs {text}, what can be acted on {id, kind,
  // label, ...state}, and blocks that hold some of these. Only what lies in view; `above` and `below` count the rest.
  const look = natively(() => {
    const nodes = [], elements = [], rows = new Set();
    gui.shut = [];  // frames that only the driver can look into
    let above = 0, below = 0, run = null;
    const view = {left: 0, top: 0, right: innerWidth, bottom: innerHeight, scrolls: true};

    const shift = (r, {x, y}) => x || y ? new DOMRect(r.x + x, r.y + y, r.width, r.height) : r;
    const within = (r, clip, scrolls) => ({left: Math.max(clip.left, r.left), top: Math.max(clip.top, r.top),
      right: Math.min(clip.right, r.right), bottom: Math.min(clip.bottom, r.bottom), scrolls});
    const inView = (r, clip, lines = 1) => {  // what scrolling would reveal is counted; 1 px hides text from sight
      if (r.width < 2 || r.height < 2 || r.right < clip.left + 2 || r.left > clip.right - 2) return false;
      if (r.bottom >= clip.top + 2 && r.top <= clip.bottom - 2) return true;
      if (clip.scrolls && r.top < clip.top) above += lines;
      else if (clip.scrolls) below += lines;
      return false;
    };
    let room = 400000;  // characters that go into the reply
    const put = (node, r, el) => {
      if (room < 0) return below++;
      node.box = [r.left, r.top, r.width, r.height].map(Math.round);
      for (const name of ATTRIBUTES) {
        const value = el.getAttribute(name)?.slice(0, LONGEST);
        if (value && !(name === "value" && el.type === "password")) (node.attributes ||= {})[name] = value;
      }
      room -= 50 + [node, node.attributes || {}].flatMap(Object.values).join("").length;
      nodes.push(node);
    };
    const flush = () => {  // end the text run
      if (!run) return;
      const {text, el, first, last, at} = run;
      const range = plain(el.ownerDocument).createRange();
      range.setStartBefore(first);
      range.setEndAfter(last);
      const r = shift(range.getBoundingClientRect(), at);
      const isLong = text.length > LONG && r.height > at.clip.bottom - at.clip.top;
      if (isLong && inView(r, at.clip)) for (const line of linesOf(run, range)) {
        const box = shift(line.r, at), node = {depth: at.depth, tag: el.localName, text: clean(line.text)};
        if (inView(box, at.clip, line.count)) put(node, box, el);
      } else if (inView(r, at.clip)) put({depth: at.depth, tag: el.localName, text: clean(text)}, r, el);
      run = null;
    };
    const write = (text, node, el, at) => {
      if (!run && !text.trim()) return;
      run ||= {text: "", el, first: node, at, pieces: []};
      if (text.trim()) run.last = node;
      run.text += text;
      run.pieces.push(node);
    };
    // at: {clip, held (the clip of what is positioned absolutely), depth, x, y (the frame's offset), quiet (the text is
    // shown elsewhere), modal (the document's dialog), cover (of the document), behind (what `isBehind` takes), parts (of
    // an item: no others are shown)}
    const walk = (node, at, parent) => {
      const el = plain(node), tag = el.localName;
      if (tag === "br" && run) run.text += " ";
      if (tag === "br" || SKIP.has(tag)) return;
      const style = getComputedStyle(node);
      if (style.display !== "contents" && !el.checkVisibility()) return;
      const faint = style.opacity === "0";
      if (faint && !takesInput(el)) return;
      const block = isBlock(el, style), visible = style.visibility === "visible", known = gui.kind?.(node);
      if (known === null) return;
      at = {...at};
      if (faint) at.quiet = true;
      if (el.inert) at.behind = "inert";
      if (node === at.modal || node === at.cover) at.behind = "";
      if (style.position === "fixed" || node === at.modal) at.clip = at.held = {...view, scrolls: false};
      else if (style.position === "absolute") at.clip = at.held;
      let kind = visible && (known ?? (el === node ? kindOf(el, style, parent, rows) : ""));
      const r = shift(kind ? rectOf(el, style) : el.getBoundingClientRect(), at);
      if (at.behind && kind && isBehind(el, at.behind)) kind = "";
      if (kind && (!at.parts || at.parts.has(el))) {
        flush();
        if (!inView(r, at.clip)) return;
        elements.push(el);
        const parts = /^(item|link|button)$/.test(kind) && el.firstElementChild && !gui.kind ? partsOf(el, kind) : null;
        const label = labelOf(tag === "label" ? el.control : el, parts), own = gui.label?.(el, label);
        put({depth: at.depth, tag, id: elements.length, kind, label: own ?? label, ...stateOf(el, kind)}, r, el);
        if (!parts?.size) return;
        at.parts = parts;
        at.quiet = true;
      }
      if (block) flush();
      else if (run && isApart(el, style)) run.text += " ";
      const start = nodes.length;
      if (style.overflowX !== "visible" && block && tag !== "body")
        at.clip = within(r, at.clip, /auto|scroll/.test(style.overflowY));
      if (style.position !== "static" || style.transform !== "none") at.held = at.clip;
      if (tag === "label" && el.control && shown(el.control)) at.quiet = true;
      if (!at.parts && block && visible && r.height > 1) { put({depth: at.depth, tag}, r, el); at.depth++; }
      if (tag === "img" && visible && el.alt) write(` ${el.alt} `, el, el, at);
      if (FRAME.test(tag) && visible) enter(el, r, at);
      const isShut = tag.includes("-") && visible && !el.firstChild && !guiOf(el).shadow(el);  // by its own document
      if (isShut && r.width > 15 && r.height > 15) unseen(el, tag, r, at);
      for (const child of childrenOf(el)) {
        if (tag === "details" && !el.open && child.localName !== "summary") continue;
        const type = plain(child).nodeType;
        if (type === 1) walk(child, at, style);
        else if (type === 3 && visible && !at.quiet) write(child.data, child, el, at);
      }
      if (block) flush();
      else if (run && isApart(el, style)) run.text += " ";
      const last = nodes.length === start + 1 && nodes[start];
      if (last && last.text === undefined && !last.id) nodes.pop();  // a block that holds nothing
    };
    const enter = (el, r, at) => {  // into a frame
      const clip = within(r, at.clip, true), inner = el.contentDocument;
      const place = {...at, clip, held: clip, x: r.left + el.clientLeft, y: r.top + el.clientTop};
      if (inner) return read(inner, place);
      if (el.localName === "object" || r.width < 16 || r.height < 16) return;
      const host = URL.parse(el.src || "", el.baseURI)?.host || "elsewhere";
      const isSeen = unseen(el, `frame from ${host}`, r, at);
      if (!isSeen || at.behind && isBehind(el, at.behind)) return;
      const {left, top, right, bottom} = clip;
      nodes.at(-1).frame = {at: [place.x, place.y], clip: [left, top, right, bottom], number: gui.shut.push(el) - 1};
    };
    const unseen = (el, name, r, at) => {
      if (at.quiet || !inView(r, at.clip)) return false;
      flush();
      put({depth: at.depth, tag: el.localName, text: `${name}: what it holds cannot be seen here`}, r, el);
      return true;
    };
    const read = (root, at) => {
      const doc = plain(root);
      at.modal = modalOf(root);
      at.cover = !at.modal && !gui.embedded && doc.body && doc.defaultView ? coverOf(root) : null;
      if (!at.behind) at.behind = at.modal ? at.modal.matches(":modal") ? "inert" : "modal" : at.cover;
      findChosen(root);
      if (doc.body || doc.documentElement) walk(doc.body || doc.documentElement, at);
      flush();
    };
    read(document, {clip: view, held: view, depth: 0, x: 0, y: 0, quiet: false, behind: ""});
    gui.elements = elements;
    return {nodes, above, below};
  });

  // The reply's text. Half of a character, which UTF-8 cannot say, is cut from an emoji.
  const toText = natively((reply) =>
    JSON.stringify(reply).replace(/(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g, "$1\ufffd"));
  gui.observe = async ({sites, error = "", wait = 0, now = false}) => {
    gui.sites = sites;
    if (!now) await gui.rest(wait);
    await gui.ready?.();
    const about = natively(() => {
      const status = performance.getEntriesByType("navigation")[0]?.responseStatus || 0;
      const {refused, named} = gui, url = location.href, {title} = plain(document), report = gui.report?.();
      const asks = gui.asked && {multiple: gui.asked.multiple};
      if (asks) [gui.fileBox, gui.asked] = [gui.asked, null];
      const still = gui.frames().some((w) => !w.__gui.scripts), why = error || refused || bubble();
      const [about, wrong] = [title, why].map((text) => text.slice(0, LONG_TITLE));
      return {url, title: about, status, error: wrong, named, asks, still, report};
    })();
    const reply = {...about, ...look()};
    gui.refused = gui.named = "";
    return toText(reply);
  };

  // ---- What the agent does. An action throws a string where the page refuses it. ----

  // A file that the page asks for, by a click on a file box or by a script: what asks. No window of Chromium's opens.
  const ask = (input, event) => {
    event?.preventDefault();
    gui.top.asked = input;
  };
  const isFile = (el) => el?.localName === "input" && el.type === "file";
  gui.hear(window, "click", (event) => {
    const [el] = event.composedPath();
    if (isFile(el) && !event.defaultPrevented) ask(el, event);
  });
  const {click} = HTMLElement.prototype, {showPicker} = HTMLInputElement.prototype;
  HTMLInputElement.prototype.click = function () {
    if (isFile(this) && !this.isConnected) ask(this); else click.call(this);
  };
  HTMLInputElement.prototype.showPicker = function () {
    if (isFile(this)) ask(this); else showPicker.call(this);
  };

  // What the browser says in a bubble of its own when it does not send a form.
  let checking = 0, invalid = [];
  for (const {prototype} of [HTMLFormElement, HTMLFieldSetElement, HTMLInputElement, HTMLSelectElement,
    HTMLTextAreaElement, HTMLButtonElement]) {
    const {checkValidity} = prototype;
    prototype.checkValidity = function () {
      checking++;
      try { return checkValidity.call(this); } finally { checking--; }
    };
  }
  gui.hear(window, "invalid", (event) => {
    if (!checking) gui.top.tell(event, event.target.validationMessage);
  }, true);
  gui.tell = (event, message) => invalid.push({event, message});
  const bubble = () => {
    const first = invalid.find(({event}) => !event.defaultPrevented);
    invalid = [];
    if (!first) return "";
    const label = labelOf(first.event.target);
    return label ? `"${label}": ${first.message}` : first.message;
  };

  const isPoint = (id) => id !== null && id.includes(",");
  const focused = () => {  // what keys go to, in a frame or a shadow tree
    for (let el = plain(document).activeElement; ;) {
      const inner = FRAME.test(el?.localName) ? plain(el.contentDocument)?.activeElement
        : el && guiOf(el).shadow(el)?.activeElement;
      if (!inner) return el;
      el = inner;
    }
  };
  const at = ({x, y}, root = document) => {  // what is seen at a point, in a frame: {x, y (in its document), hit}
    const hit = deepest(root, x, y), inner = FRAME.test(hit?.localName) && hit.contentDocument;
    if (!inner) return {x, y, hit};
    const r = hit.getBoundingClientRect();
    return at({x: x - r.left - hit.clientLeft, y: y - r.top - hit.clientTop}, inner);
  };
  const find = natively((id) => {  // an id, "120,80": what is seen there, or "focus": what keys go to
    if (id === "focus") return focused();
    if (isPoint(id)) return at(parse(id)[0]).hit;
    const el = gui.elements[id - 1];
    if (!el) throw `there is no element ${id} on this page`;
    if (!el.isConnected) throw `element ${id} is gone`;
    if (el.matches(":disabled")) throw `element ${id} is disabled`;
    return el;
  });
  // A point of the element (in its document's coordinates) that nothing covers, and what is there.
  const reach = natively((el) => {
    const others = gui.elements.filter((other) => other !== el && el.contains(other));
    for (const scroll of [false, true]) {
      if (scroll) el.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});
      const own = [...el.getClientRects()].filter((r) => r.width && r.height);
      for (const r of own.length ? own : [rectOf(el)])  // a link over two lines has two
        for (const [across, down] of others.length ? SPOTS : SPOTS.slice(0, 1)) {
          const x = r.left + r.width * across, y = r.top + r.height * down, hit = deepest(el.ownerDocument, x, y);
          if (others.some((other) => other.contains(hit))) continue;
          for (let node = hit; node; node = aboveOf(node))
            if (node === el) return {x, y, hit};
            else if (node.localName === "label" && node.control === el) return {x, y, hit: el};
          if (hit?.contains(el) && r.width && r.height) return {x, y, hit: el};
        }
    }
    throw "another element covers it";
  });
  const SPOTS = [[0.5, 0.5], [0.1, 0.5], [0.5, 0.1], [0.9, 0.5], [0.5, 0.9], [0.02, 0.02], [0.98, 0.98]];
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
        bubbles: !enters, cancelable: true, composed: true, view: plain(el.ownerDocument).defaultView,
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
    const point = at(parse(argument)[0]);
    return press(point.hit, button, point);
  };
  const pressTwice = (once) => {
    once();
    once()("dblclick");
  };
  const boxOf = (el) => el.closest("input, textarea")
    || (el.isContentEditable ? editorOf(el) : el.closest("label")?.control || el);
  const editorOf = (el) => {
    while (el.parentElement?.isContentEditable && el.localName !== "body") el = el.parentElement;
    return el;
  };
  const check = (el, text) => {  // whether a box takes this text: as it will be there
    if (el.type === "file") throw 'a file box: a file is put there by the action "Upload File"';
    if (el.localName === "input" && kindOf(el) !== "box") throw "text can only be typed into a box";
    if (el.readOnly) throw "the box is read-only";
    const form = el.localName === "input" && formOf(el), wanted = text.trim();
    if (!form || !wanted) return form ? wanted : text;
    const probe = el.cloneNode();
    probe.value = wanted;
    const fits = el.type === "range" ? Number(probe.value) === Number(wanted)
      : el.type === "color" ? probe.value === wanted.toLowerCase() : probe.value !== "";
    if (!fits) throw `the box takes ${form}, not "${clean(text)}"`;
    return probe.value;
  };
  const type = (el, text) => {
    if (!holdsText(el)) throw "text can only be typed into a box";
    const fitting = check(el, text), letter = [...text].at(-1) ?? "Backspace";
    el.focus({preventScroll: true});
    // A person's keys are heard one by one, and go on in the next box where this one is full.
    const isFull = el.maxLength >= 0 && fitting.length > el.maxLength, needsKeys = isFull || hearsKeys(el);
    if (!gui.playing && (el.isContentEditable || !gui.embedded && needsKeys && !hasForm(el))) return {keys: byKeys(el)};
    const keyCode = letter === "Backspace" ? 8 : /[a-z0-9 ]/i.test(letter) ? letter.toUpperCase().charCodeAt() : 0;
    const key = (name) => hasForm(el) || name === "keypress" && !text || el.dispatchEvent(new KeyboardEvent(name, {
      key: letter, keyCode, charCode: name === "keypress" ? letter.codePointAt() : 0, bubbles: true, cancelable: true,
      composed: true}));
    if (!(key("keydown") && key("keypress")) && !gui.embedded) return {keys: byKeys(el)};
    if (el.isContentEditable) el.textContent = text;
    else {  // past the setter that a framework puts on the element itself
      const {set} = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(el), "value");
      set.call(el, el.maxLength >= 0 ? fitting.slice(0, el.maxLength).replace(/[\ud800-\udbff]$/, "") : fitting);
    }
    el.dispatchEvent(new InputEvent("input", {bubbles: true, composed: true, data: text, inputType: "insertText"}));
    key("keyup");
    el.dispatchEvent(new Event("change", {bubbles: true}));
  };
  // A box that only true keys fill: an editor, or one whose page takes the keys itself.
  const holdsText = (el) => el.isContentEditable || el.localName === "textarea" || el.localName === "input";
  const textIn = (el) => (el.value ?? el.textContent).replace(/[\s\u200b\ufeff]/g, "");
  let typing = null;
  const hearsKeys = (el) => {
    for (let node = el; node; node = node.parentNode || node.host) if (guiOf(el).keyed(node)) return true;
    return Boolean(guiOf(el).keyed(el.ownerDocument.defaultView || window));
  };
  const byKeys = (el) => {
    const mine = typing = {el, before: textIn(el), taken: false};
    native.call(el, "input", () => { mine.taken = true; }, {once: true});
    return {single: el.localName === "input", blank: (el.value ?? el.textContent) === ""};
  };
  gui.typed = ({text, ...rest}) => {  // the driver has pressed them: whether it is there
    const {el, before, taken} = typing, now = textIn(el), wanted = text.replace(/[\s\u200b\ufeff]/g, "");
    // an empty box that is empty again may have made something of it
    const isLost = now === before ? wanted !== before && !(taken && !before)
      : el.isContentEditable && now.length < wanted.length / 2;
    const error = el.isConnected && holdsText(el) && isLost ? "the box did not take the text" : "";
    return gui.observe({...rest, error});
  };
  const enter = (el) => {
    const key = (name) => el.dispatchEvent(new KeyboardEvent(name, {
      key: "Enter", code: "Enter", keyCode: 13, charCode: 13, which: 13, bubbles: true, cancelable: true,
      composed: true}));
    if (key("keydown") && key("keypress") && el.localName === "input" && el.form) {
      const submit = [...plain(el.form).elements].find((field) => field.type === "submit" || field.type === "image");
      if (submit) submit.click(); else plain(el.form).requestSubmit();
    }
    key("keyup");
  };
  const select = (el, text) => {
    if (el.localName !== "select") throw "this element has no options";
    const names = [...el.options].map((option) => clean(option.label));
    const wanted = clean(text), folded = wanted.toLowerCase();
    const starts = names.filter((name) => folded && name.toLowerCase().startsWith(folded));
    let index = names.indexOf(wanted);
    if (index < 0) index = names.findIndex((name) => name.toLowerCase() === folded);
    if (index < 0 && new Set(starts).size === 1) index = names.indexOf(starts[0]);
    if (index < 0) {
      const choices = (starts.length ? starts : names).filter(Boolean), more = choices.length - CHOICES;
      const shown = choices.slice(0, CHOICES).map((name) => `"${name}"`).join(", ") || "none";
      const list = more > 0 ? `${shown} and ${more} more` : shown;
      throw starts.length ? `"${wanted}" may be ${list}` : `there is no option "${wanted}"; there are ${list}`;
    }
    const option = el.options[index];
    if (option.matches(":disabled")) throw `option "${names[index]}" is disabled`;
    el.focus({preventScroll: true});
    if (el.multiple) option.selected = true; else el.selectedIndex = index;
    for (const name of ["input", "change"]) el.dispatchEvent(new Event(name, {bubbles: true, composed: true}));
  };
  const CHOICES = 20;

  const isPage = (box) => box === plain(box.ownerDocument).scrollingElement;
  const heightOf = (box) => isPage(box) ? box.ownerDocument.defaultView.innerHeight : box.clientHeight;
  const scrolls = (node, sign) => {
    const box = plain(node), {scrollTop, scrollHeight} = box, {body} = plain(box.ownerDocument);
    if (!(sign < 0 ? scrollTop > 0 : scrollTop + box.clientHeight < scrollHeight - 1)) return false;
    const [overflow, inner] = [node, body || node].map((el) => getComputedStyle(el).overflowY);
    if (!isPage(node)) return /auto|scroll/.test(overflow);
    return (overflow === "visible" ? inner : overflow) !== "hidden";
  };
  const everything = function* (root = document) {  // in its frames and shadow trees, too
    for (const el of plain(root).querySelectorAll("*")) {
      yield el;
      const inner = guiOf(el).shadow(el) || FRAME.test(el.localName) && el.contentDocument;
      if (inner) yield* everything(inner);
    }
  };
  const scrollable = (el, sign) => {  // what holds `el`, else the page, else its largest part that scrolls
    while (el && !scrolls(el, sign)) el = parentOf(el);
    const area = (box) => box.clientWidth * heightOf(box), page = plain(document).scrollingElement;
    if (el || page && scrolls(page, sign)) return el || page;
    const parts = [...everything()].filter((box) => scrolls(box, sign) && box.checkVisibility());
    return parts.sort((a, b) => area(b) - area(a))[0];
  };
  const scrollBy = (box, top) => {
    const target = isPage(box) ? box.ownerDocument : box;
    box.scrollBy({top, behavior: "instant"});
    // The browser's own event comes with the next frame: too late to be seen, and without compositing never.
    target.dispatchEvent(new Event("scroll", {bubbles: isPage(box)}));
  };
  const scroll = (el, sign) => {
    const box = scrollable(el, sign);
    if (!box) throw `the page does not scroll further ${sign < 0 ? "up" : "down"}`;
    scrollBy(box, sign * 2 / 3 * Math.min(heightOf(box), innerHeight));
  };
  // The keys that scroll, at once: the browser's own way there takes frames.
  const PAGES = {PageDown: 0.875, PageUp: -0.875, " ": 0.875, End: Infinity, Home: -Infinity};
  const LINES = {ArrowDown: 40, ArrowUp: -40};
  const byKey = (event) => {
    const el = event.composedPath()[0], {key} = event;
    const way = key === " " && event.shiftKey ? -PAGES[key] : PAGES[key] ?? LINES[key];
    if (event.defaultPrevented || way === undefined || event.altKey || event.metaKey || !event.isTrusted) return;
    if (el.isContentEditable || el.matches?.("input, textarea, select, video, audio")) return;
    if (key === " " && el.matches?.("button, summary, [role=button]")) return;
    const sign = Math.sign(way), box = scrollable(el.ownerDocument ? el : null, sign);
    event.preventDefault();
    if (box) scrollBy(box, key in LINES ? way : sign * Math.min(Math.abs(way) * heightOf(box), box.scrollHeight));
  };
  const beforeKeys = () => {  // behind all other listeners, which may keep the key
    window.removeEventListener("keydown", byKey);
    window.addEventListener("keydown", byKey, {once: true});
  };
  gui.listenToKeys = () => {  // anew before every key: a frame whose window was taken over has been seen to be deaf
    window.removeEventListener("keydown", beforeKeys, true);
    window.addEventListener("keydown", beforeKeys, true);
  };
  gui.aim = ({element, sites}) => toText(attempt(() => {  // where keys are to go
    gui.sites = sites;
    begin();
    for (const w of gui.frames()) w.__gui.listenToKeys();
    if (element !== null) find(element).focus();
  }));

  const ACTIONS = {  // (element, argument, point): at the point where there is one
    "Click": (el, _, at) => { at ? pressAt(at) : press(el); },
    "Right Click": (el, _, at) => { at ? pressAt(at, 2) : press(el, 2); },
    "Double Click": (el, _, at) => pressTwice(() => at ? pressAt(at) : press(el)),
    "Type": (el, text) => type(boxOf(el), text),
    "Search": (el, text) => type(boxOf(el), text) || enter(boxOf(el)),
    "Select Dropdown Option": (el, text) => select(el.closest("select") || el, text),
    "Scroll Up": (el) => scroll(el, -1),
    "Scroll Down": (el) => scroll(el, 1),
    "Upload File": (el) => { if (isFile(boxOf(el))) ask(boxOf(el)); else press(el); },
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
  const begin = () => {  // an action: what happened before is not of its doing
    invalid = [];
    gui.named = "";
  };
  gui.act = ({name, element, argument, sites}) => {
    gui.sites = sites;
    begin();
    const at = isPoint(element) ? element : /Click$/.test(name) && element === null ? argument : null;
    const done = attempt(() => ACTIONS[name](element === null ? null : find(element), argument, at));
    const wait = name === "Wait" && 1000 * argument || 0;
    return done.keys ? toText(done) : gui.observe({sites, wait, ...done});
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
  gui.locate = ({name, element, argument}) => toText(attempt(() => {  // where a real mouse has to go
    begin();
    const pointsOf = (id) => isPoint(id) ? parse(id) : [pointOf(id)];
    if (element === null) return {points: parse(argument)};
    if (/^(Type|Search)$/.test(name)) {
      const box = boxOf(find(element));
      check(box, argument);
      if (hasForm(box)) return {inPage: true};  // its parts take keys, in an order of their own
      return {points: pointsOf(element), keys: byKeys(box)};
    }
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
    gui.playing = true;  // without the driver's keys
    let reply = await gui.observe({sites});
    for (const action of actions) reply = await gui.act({...action, sites});
    gui.playing = false;
    return reply;
  };
  gui.traverse = async ({step, ...rest}) => {  // back or forward: the document ends, or is another page from now on
    const arrived = new Promise((done) => {
      window.addEventListener("popstate", done, {once: true});
      document.addEventListener("load", (event) => FRAME.test(event.target.localName) && done(), {capture: true});
    });
    history.go(step);
    await arrived;
    return gui.observe(rest);
  };
}
