// The table of jobs: all of them in memory, and as many rows on the page as fit on it.
import { ago, ask, dollars, el, length, state, trouble } from "./dom.js";

const SPARE = 12;  // rows above and below those that are seen
const COLUMNS = [
  ["state", "state", ""], ["name", "name", ""], ["pipeline", "pipeline", ""], ["accelerator", "accelerator", ""],
  ["where", "where", ""], ["attempts", "attempts", "right"], ["seconds", "held", "right"], ["usd", "cost", "right"],
  ["at", "submitted", "right"],
];
const NUMBERS = new Set(["attempts", "seconds", "usd", "at"]);
const STATES = ["RUNNING", "PENDING", "SUCCEEDED", "FAILED", "CANCELLED", "DAMAGED"];

// What outlives the view: going to a job and back shows the same rows at the same place.
const known = { rows: new Map(), version: 0, told: null, columns: [], clock: 0 };
const chosen = { text: "", state: "", pipeline: "", accelerator: "", by: "at", up: false, top: 0, active: "" };

export function jobs(main) {
  let shown = [], drawn = new Map(), timer = 0, gone = false, asked = new Set(), tall = 40, pending = false;

  const filter = el("input", { type: "search", placeholder: "Filter by name, id, pipeline, run", "aria-label": "Filter jobs", value: chosen.text, oninput: () => { chosen.text = filter.value; choose(); } });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "State" });
  const pipeline = picked("pipeline", "All pipelines"), accelerator = picked("accelerator", "All accelerators");
  const count = el("span", { class: "count", role: "status" });
  const rest = el("button", { hidden: true, onclick: readAll });
  const head = el("div", { class: "line head", role: "row", "aria-rowindex": 1 }, ...COLUMNS.map(([key, label, side]) =>
    el("span", { role: "columnheader", class: `${side} c-${key}`, "data-key": key },
      el("button", { onclick: () => { chosen.up = chosen.by === key ? !chosen.up : !NUMBERS.has(key); chosen.by = key; choose(); } }, label))));
  const space = el("div", { role: "presentation" });
  const rows = el("div", { class: "rows", role: "rowgroup", tabindex: 0, "aria-label": "Jobs: arrow keys move, Enter opens", onscroll: draw, onkeydown: key }, space);
  const empty = el("div", { class: "empty", hidden: true });
  const grid = el("div", { class: "grid", role: "grid", "aria-label": "Jobs" }, head, rows, empty);
  main.append(el("div", { class: "tools" }, filter, chips, pipeline, accelerator, rest, count), grid);

  function picked(field, all) {
    return el("select", { "aria-label": field, onchange: (event) => { chosen[field] = event.target.value; choose(); } }, el("option", { value: "" }, all));
  }

  async function refresh() {
    try {
      take(await ask(`/api/jobs?since=${known.version}`));
      trouble();
    } catch (error) {
      trouble(error.message);
    }
    if (!gone) timer = setTimeout(refresh, document.hidden ? 15000 : known.told && known.told.metered ? 10000 : 1500);
  }

  function take(told) {
    if (gone) return;
    if (told.version < known.version) { known.rows.clear(); known.version = 0; return; }  // another start of the server
    known.told = told; known.version = told.version; known.columns = told.columns; known.clock = told.now - Date.now() / 1000;
    merge(told.rows);
    for (const id of told.gone) known.rows.delete(id);
    if (told.rows.length || told.gone.length || !shown.length) choose();
    else draw();
  }

  function merge(rows) {
    for (const row of rows) {
      const made = { id: row[0], at: row[1] };
      for (let index = 2; index < row.length; index++) made[known.columns[index]] = row[index];
      known.rows.set(made.id, made);
    }
  }

  async function readAll() {
    rest.disabled = true;
    try { take(await ask(`/api/jobs?since=${known.version}&all=1`)); } catch (error) { trouble(error.message); }
    rest.disabled = false;
  }

  function choose() {
    const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...known.rows.values()], counts = {};
    const fits = (row) => words.every((word) => `${row.name || ""} ${row.id} ${row.pipeline || ""} ${row.run || ""} ${row.where || ""}`.toLowerCase().includes(word))
      && (!chosen.pipeline || row.pipeline === chosen.pipeline) && (!chosen.accelerator || row.accelerator === chosen.accelerator);
    const fitting = all.filter(fits);
    for (const row of fitting) if (row.state) counts[row.state] = (counts[row.state] || 0) + 1;
    shown = chosen.state ? fitting.filter((row) => row.state === chosen.state) : fitting;
    const by = chosen.by, way = chosen.up ? 1 : -1;
    shown.sort((one, other) => {
      const a = one[by], b = other[by];
      const unknown = (a === undefined || a === null) - (b === undefined || b === null);
      if (unknown) return unknown;
      return (NUMBERS.has(by) ? a - b : String(a).localeCompare(String(b))) * way || other.at - one.at || (one.id < other.id ? -1 : 1);
    });
    for (const cell of head.children) cell.setAttribute("aria-sort", cell.dataset.key === by ? (chosen.up ? "ascending" : "descending") : "none");
    chips.replaceChildren(...STATES.filter((name) => counts[name] || chosen.state === name).map((name) => {
      const chip = el("button", { class: `chip ${name}`, "aria-pressed": String(chosen.state === name), onclick: () => { chosen.state = chosen.state === name ? "" : name; choose(); chips.querySelector(`.${name}`)?.focus(); } }, state(name), el("b", {}, (counts[name] || 0).toLocaleString("en")));
      return chip;
    }));
    options(pipeline, "pipeline", all); options(accelerator, "accelerator", all);
    const told = known.told, unread = told ? told.unread : 0;
    const some = shown.length === all.length ? "" : `${shown.length.toLocaleString("en")} of `;
    count.textContent = !told ? "" : `${some}${all.length.toLocaleString("en")} jobs${unread && told.reads_all ? `, ${unread.toLocaleString("en")} still being read` : ""}`;
    rest.hidden = !(told && unread && !told.reads_all);
    rest.textContent = `Read ${unread.toLocaleString("en")} more, some ${(unread * 10).toLocaleString("en")} requests`;
    empty.hidden = shown.length > 0; rows.hidden = !empty.hidden;
    if (!empty.hidden) {
      if (!told) empty.textContent = "Listing the jobs …";
      else if (all.length) empty.textContent = unread && !told.reads_all ? "None of the jobs that were read fits." : "No job fits.";
      else empty.replaceChildren("There are no jobs here yet. ", el("code", {}, "kinor plan FILE:FUNCTION"), " shows what one would be.");
    }
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    for (const line of drawn.values()) line.remove();
    drawn.clear();
    draw();
  }

  function options(select, field, all) {
    const there = [...new Set(all.map((row) => row[field]).filter(Boolean))].sort().slice(0, 500);
    if (select.options.length - 1 === there.length && there.every((name, index) => select.options[index + 1].value === name)) return;
    select.replaceChildren(select.options[0], ...there.map((name) => el("option", { value: name, selected: name === chosen[field] }, name.slice(0, 60))));
  }

  function draw() {
    tall = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 40;
    space.style.height = `${shown.length * tall}px`;
    if (!rows.hidden) chosen.top = rows.scrollTop;
    const first = Math.max(0, Math.floor(rows.scrollTop / tall) - SPARE);
    const last = Math.min(shown.length, Math.ceil((rows.scrollTop + rows.clientHeight) / tall) + SPARE);
    const wanted = new Set(shown.slice(first, last).map((row) => row.id));
    for (const [id, line] of drawn) if (!wanted.has(id)) { line.remove(); drawn.delete(id); }
    const unread = [];
    for (let index = first; index < last; index++) {
      const row = shown[index];
      let line = drawn.get(row.id);
      if (!line) { line = made(row, index); drawn.set(row.id, line); rows.append(line); }
      line.style.transform = `translateY(${index * tall}px)`;
      line.classList.toggle("active", row.id === chosen.active);
      if (!row.state && !asked.has(row.id)) unread.push(row.id);
    }
    if (chosen.active && drawn.has(chosen.active)) rows.setAttribute("aria-activedescendant", chosen.active);
    else rows.removeAttribute("aria-activedescendant");
    if (unread.length && !pending) look(unread);
  }

  async function look(ids) {  // those that are seen are read first
    pending = true;
    await new Promise((done) => setTimeout(done, 60));  // a wheel that turns has left them before they are read
    const now = ids.filter((id) => drawn.has(id)).slice(0, 100);
    try {
      if (now.length && !gone) {
        for (const id of now) asked.add(id);
        merge((await ask(`/api/rows?ids=${now.join(",")}`)).rows);
        for (const id of now) { asked.delete(id); const row = known.rows.get(id), line = drawn.get(id); if (row && row.state && line) { line.replaceWith(swap(id, line)); } }
        for (const row of shown) { const newer = known.rows.get(row.id); if (newer && newer !== row) Object.assign(row, newer); }
      }
    } catch (error) {
      trouble(error.message);
    }
    pending = false;
    if (!gone) draw();
  }

  function swap(id, line) {
    const index = shown.findIndex((row) => row.id === id), fresh = made(known.rows.get(id), index);
    fresh.style.transform = line.style.transform;
    drawn.set(id, fresh);
    return fresh;
  }

  function made(row, index) {
    const cell = (key, side, ...content) => el("span", { role: "gridcell", class: `cell ${side} c-${key}` }, ...content);
    const age = known.clock ? Date.now() / 1000 + known.clock - row.at : 0;
    return el("a", { class: "line", role: "row", id: row.id, href: `#/job/${row.id}`, tabindex: -1, "aria-rowindex": index + 2, title: (row.note || "").slice(0, 300) },
      cell("state", "", state(row.state)),
      cell("name", "name", row.name || "", el("span", { class: "id" }, row.id)),
      cell("pipeline", "dim", row.pipeline && row.pipeline !== row.name ? row.pipeline : ""),
      cell("accelerator", "", row.accelerator || ""), cell("where", "dim", row.where || ""),
      cell("attempts", "right", row.attempts ? String(row.attempts) : ""), cell("seconds", "right", length(row.seconds)),
      cell("usd", "right", row.state ? dollars(row.usd) : ""), cell("at", "right dim", ago(age)));
  }

  function key(event) {
    const at = shown.findIndex((row) => row.id === chosen.active), page = Math.max(1, Math.floor(rows.clientHeight / tall) - 1);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: shown.length - 1 };
    if (event.key === "Enter" && at >= 0) location.hash = `#/job/${chosen.active}`;
    if (!(event.key in steps) || !shown.length) return;
    event.preventDefault();
    const to = Math.min(shown.length - 1, Math.max(0, steps[event.key]));
    chosen.active = shown[to].id;
    if (to * tall < rows.scrollTop) rows.scrollTop = to * tall;
    if ((to + 1) * tall > rows.scrollTop + rows.clientHeight) rows.scrollTop = (to + 1) * tall - rows.clientHeight;
    draw();
  }

  function slash(event) {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); filter.focus(); }
  }

  addEventListener("resize", draw);
  addEventListener("keydown", slash);
  const back = chosen.top;
  choose();
  rows.scrollTop = back;
  draw();
  refresh();
  return () => { gone = true; clearTimeout(timer); removeEventListener("resize", draw); removeEventListener("keydown", slash); };
}
