// What a person does in the browser's window, told to tools/play.py as what an agent could do; it is the driver that
// then does it, so that a demonstration holds what an agent's actions bring. An init script of every document.
//
// `__person.state`: "off" (the driver acts: nothing is heard), "on", or "told" (until play.py goes on, all is swallowed).
// Told by __heard(JSON): a list of {name, points: [[x, y], ..], text}, or {refused: why}, or {left: url}.
() => {
  const person = {state: "off"};
  Object.defineProperty(window, "__person", {value: person, configurable: true});  // a window may outlive its document
  const tell = (...told) => {
    person.state = "told";
    window.__heard(JSON.stringify(told));
  };

  const TEXT = /^(text|search|email|url|tel|password|number|date|time|datetime-local|month|week|color|range)$/;
  const inner = (event) => event.composedPath().find((node) => node instanceof Element) || document.documentElement;
  const fieldOf = (el) => {  // what takes text or a choice from the window itself
    const field = el.closest("input, textarea, select, [contenteditable]:not([contenteditable=false])");
    if (!field || field.localName === "input" && !TEXT.test(field.type)) return null;
    return field.disabled || field.readOnly ? null : field;
  };
  const textOf = (field) => field.isContentEditable ? field.innerText : field.value;
  const shift = ({x, y}) => {  // into the window's own view, out of a frame
    for (let w = window; w !== w.top; w = w.parent) {
      if (!w.frameElement) return null;
      const r = w.frameElement.getBoundingClientRect();
      x += r.left + w.frameElement.clientLeft;
      y += r.top + w.frameElement.clientTop;
    }
    return [x, y];
  };
  const at = (...points) => points.map(shift);
  const middle = (el) => {
    const r = el.getBoundingClientRect();
    return {x: r.left + r.width / 2, y: r.top + r.height / 2};
  };

  let typed = null, down = null;  // a field whose new text is not told yet; where the button went down
  const chosen = new WeakMap();  // list of several -> the options that are chosen, before a hand changes that
  const note = (field) => field?.multiple && field.options && chosen.set(field, new Set(field.selectedOptions));
  const written = () => {
    const field = typed;
    typed = null;
    return field?.isConnected ? [{name: "Type", points: at(middle(field)), text: textOf(field)}] : [];
  };
  const hear = (type, listener) => window.addEventListener(type, (event) => {
    if (!event.isTrusted || person.state === "off") return;
    if (person.state === "told" || listener(event) === false) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }, {capture: true, passive: false});

  const pressed = (event) => {  // false: it is told, or swallowed
    const el = inner(event), field = fieldOf(el), point = {x: event.clientX, y: event.clientY};
    if (event.type === "mousedown") note(field);
    if (field && event.button === 0) return true;  // to type there, or to choose
    if (event.type === "mousedown") down = point;
    if (event.type === "contextmenu") tell(...written(), {name: "Right Click", points: at(point)});
    if (event.type === "dblclick") tell({refused: "a double click (each click was one): type it here instead"});
    if (event.type === "auxclick" && event.button === 1) tell({refused: "a click with the middle button"});
    if (event.type === "mouseup" && down && Math.hypot(point.x - down.x, point.y - down.y) > 8)
      tell(...written(), {name: "Drag", points: at(down, point)});
    else if (event.type === "click" && event.detail <= 1) {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) tell({refused: "a click with a key held"});
      else if (el.closest("input[type=file]") || el.closest("label")?.control?.type === "file")
        tell({refused: "a choice of files (of the task's own here: upload NUMBER NAME)"});
      else if (event.detail === 0) return true;  // of a key, which was told
      else tell(...written(), {name: "Click", points: at(point)});
    }
    return false;
  };
  for (const type of "pointerdown mousedown pointerup mouseup click auxclick dblclick contextmenu".split(" "))
    hear(type, pressed);

  hear("input", (event) => {
    const field = fieldOf(inner(event));
    if (field?.localName === "select") return false;  // the driver will say so
    if (field) typed = field;
  });
  hear("change", (event) => {
    const field = fieldOf(inner(event));
    if (field?.localName === "select") {
      typed = null;
      if (field.multiple) choice(field);
      else tell({name: "Select Dropdown Option", points: at(middle(field)), text: field.selectedOptions[0]?.label});
      return false;
    }
  });
  const choice = (field) => {  // an agent adds one option after the other, and takes none back
    const before = chosen.get(field) || new Set(), added = [...field.selectedOptions].filter((one) => !before.has(one));
    const isKept = [...before].every((one) => one.selected);
    for (const one of field.options) one.selected = before.has(one);
    const points = at(middle(field));
    if (isKept) tell(...added.map(({label}) => ({name: "Select Dropdown Option", points, text: label})));
    else tell({refused: "an option taken back in a list of several (hold Ctrl to add one)"});
  };
  hear("focusout", (event) => {  // once a click or a key that is told of itself has had its turn
    if (typed) queueMicrotask(() => person.state === "on" && typed && tell(...written()));
  });

  const SCROLLS = {PageDown: 1, ArrowDown: 1, " ": 1, PageUp: -1, ArrowUp: -1};
  hear("keydown", (event) => {
    const {key} = event, el = inner(event), field = fieldOf(el);
    note(field);
    if (event.ctrlKey || event.metaKey || event.altKey) return true;  // the window's own, or an editor's
    const line = field && field.localName === "input";
    if (line && key === "Enter" && typed === field) {
      typed = null;
      tell({name: "Search", points: at(middle(field)), text: textOf(field)});
    } else if (field && (key === "Escape" || line && /^(Enter|ArrowUp|ArrowDown)$/.test(key)) && field.type !== "range")
      tell(...written(), {name: "Press", points: [], text: key});
    else if (field || /^(Shift|Control|Alt|Meta|CapsLock|F\d+|Dead|Process)$/.test(key)) return true;
    else if (key === "Enter" || key === " " && el !== document.body) {
      if (el === document.body) tell({name: "Press", points: [], text: key});
      else tell(...written(), {name: "Click", points: at(middle(el))});
    } else if (SCROLLS[key]) tell({name: SCROLLS[key] > 0 ? "Scroll Down" : "Scroll Up", points: []});
    else tell(...written(), {name: "Press", points: [], text: key});
    return false;
  });
  hear("wheel", (event) => {
    if (event.ctrlKey || !event.deltaY) return true;
    tell(...written(), {name: event.deltaY > 0 ? "Scroll Down" : "Scroll Up", points: []});
    return false;
  });
  hear("drop", () => { tell({refused: "something dropped here"}); return false; });
  if (window === window.top) window.__heard(JSON.stringify([{left: location.href}]));
}
