// What all views share: elements whose content is text, pictures, questions to the server, and how values are written.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));  // strings become text, never markup
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "rect", "path", "circle", "line", "text", "title"]);
const SAID = new Set([
  "x", "y", "dx", "dy", "cx", "cy", "r", "rx", "d", "width", "height", "viewBox", "transform", "fill", "fill-opacity",
  "stroke", "stroke-opacity", "stroke-width", "opacity", "text-anchor", "font-size", "font-weight", "role", "aria-label",
]);

// A picture that the server drew, made anew from the elements and attributes that pictures have: no other ones get in.
export function picture(text) {
  if (!text) return null;
  const drawn = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return drawn.namespaceURI === SVG ? copied(drawn) : null;
}

function copied(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || node.namespaceURI !== SVG || !DRAWN.has(node.localName)) return "";
  const made = document.createElementNS(SVG, node.localName);
  for (const { name, value } of node.attributes) {
    if (SAID.has(name) && !value.includes("url(")) made.setAttribute(name, value);
  }
  made.append(...[...node.childNodes].map(copied));
  return made;
}

export async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new Error("kinor ui does not answer: it has ended, or this machine is asleep. Start it again for a new address.");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.error || `the server answers ${answer.status}`);
  return told;
}

export function trouble(text = "") {
  const place = document.getElementById("trouble");
  place.textContent = text;
  place.hidden = !text;
}

export function state(name) {
  const known = name || "unread";
  return el("span", { class: `state ${known.replace(/\W/g, "")}` }, name ? name.toLowerCase() : "…");
}

export function length(seconds) {
  if (!(seconds > 0)) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function ago(seconds) {
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function dollars(usd) {
  if (usd === null || usd === undefined) return "unknown";
  if (usd === 0) return "–";
  return `$${usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}
