"use strict";
// What an episode looks like, for view.js and compare.js.
// Everything from a page reaches the document as text nodes (textContent) or a data: image, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = ["svg", "path", "circle", "line", "text", "title"].includes(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const number = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));
const success = (episode) => (episode.verdict === null ? null : episode.verdict >= 0.5);
const judged = (episode) => (episode.judged === null ? null : episode.judged >= data.threshold);
const disagrees = (episode) => success(episode) !== null && judged(episode) !== null && success(episode) !== judged(episode);
const outcome = (episode) => (success(episode) === null ? episode.reward >= 0.5 : success(episode));

function verdict(label, value, text) {
  return make("span", { class: "chip " + (value === null ? "" : value ? "good" : "bad") }, `${label}: ${value === null ? "unknown" : text}`);
}

function meter(label, value, diverging) {
  if (value === null) return null;
  const size = Math.min(1, Math.abs(value)) * (diverging ? 50 : 100);
  const left = diverging ? (value < 0 ? 50 - size : 50) : 0;
  const sign = diverging ? (value < 0 ? "minus" : "plus") : "";
  return make("div", { class: "meter" }, label, make("b", {}, number(value)),
    make("div", { class: "bar" }, make("i", { class: sign, style: `left:${left}%;width:${size}%` })));
}

function action(text) {
  const lines = text.split("\n"), code = make("code");
  for (const line of lines) code.append(make("span", { class: line.startsWith("#") ? "comment" : "call" }, line), ...(line.startsWith("#") ? [] : ["\n"]));
  return code;
}

// The page's text; the line of the element that the action names is marked.
function page(text, target) {
  const box = make("div", { class: "page" });
  for (const line of text.split("\n")) {
    const match = line.match(/^("[^"]*" |)([a-z]+)( "[^"]*"|)( \[(\d+)\])?(.*)$/s);
    const node = make("div", { class: "row" });
    if (match) node.append(match[1], make("span", { class: "kind" }, match[2]), match[3], make("span", { class: "id" }, match[4] ?? ""), match[6]);
    else node.append(line || " ");
    if (target !== null && (match?.[5] === target || line.includes(`id="${target}"`))) node.classList.add("hit");
    box.append(node);
  }
  return box;
}

// The screenshot, and where the action points to; of a drag, from the ring to the dot.
function shot(name, touches) {
  if (!data.images[name]) return null;
  const [picture, left] = data.images[name];
  const image = make("img", { src: picture, alt: "screenshot", loading: "lazy" });
  image.addEventListener("click", () => { $("zoom").replaceChildren(make("img", { src: picture, alt: "screenshot" })); $("zoom").showModal(); });
  const marks = touches.map(([x, y], i) => {
    const mark = make("span", { class: "touch" + (i < touches.length - 1 ? " from" : "") });
    mark.style.left = 100 * x + "%";
    mark.style.top = Math.min(100, (100 * y) / left) + "%";
    return mark;
  });
  return make("div", { class: "shot" }, make("div", { class: "picture" }, image, ...marks));
}

// A restored step is an earlier episode's: this one goes on from the state behind it.
function step(s, i, restored) {
  const target = s.action.match(/element="([^"]*)"/)?.[1] ?? null, picture = shot(s.screenshot, s.touches);
  return make("section", { class: "step" + (restored ? " restored" : ""), id: "step-" + i },
    make("div", { class: "number" }, String(i + 1)),
    make("div", { class: "card" },
      make("div", { class: "act" }, action(s.action), restored ? make("span", { class: "chip" }, "restored") : null, meter("value", s.value, false), meter("advantage", s.advantage, true)),
      make("div", { class: "body" + (picture ? "" : " bare") }, picture, page(s.observation, target)),
      make("div", { class: "foot" }, make("span", { class: "where" }, s.url), s.error ? make("span", { class: "error" }, s.error) : null)));
}

function ending(episode) {
  const good = outcome(episode), cell = (label, text, kind = "") => make("div", {}, make("span", { class: "label" }, label), make("span", { class: "big " + kind }, text));
  return make("section", { class: "step" }, make("div", { class: "number" }, "end"),
    make("div", { class: "card" },
      make("div", { class: "end" }, cell("ended by", episode.ending === "exit" ? "the agent's exit" : "the step limit"), cell("answer", episode.answer || "none"),
        cell("environment", success(episode) === null ? "unknown" : good ? "success" : "failure", success(episode) === null ? "" : good ? "good" : "bad"),
        episode.score === null ? null : cell("score", number(episode.score)),
        cell("judge", episode.judged === null ? "not asked" : number(episode.judged)), cell("reward in training", number(episode.reward))),
      episode.final_observation ? page(episode.final_observation, null) : null));
}

$("zoom").addEventListener("click", () => $("zoom").close());
