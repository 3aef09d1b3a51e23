// One job: its facts, its pictures, and what its hosts write, by the one stream of this page.
import { ask, el, picture, state, trouble } from "./dom.js";

const MOST = 20000;  // lines that are kept
const TALL = 18, SPARE = 30;

export function job(main, id) {
  let gone = false, stream = null, lines = [], shown = [], host = "", hosts = 1, text = "", dropped = false, late = false, attempt = 1;
  let follows = true, drawing = 0, longest = 0, final = false;
  const heading = el("h1", { dir: "auto" }, id), status = el("span", {}), said = el("div", { class: "said" }), progress = el("div", { class: "progress", hidden: true, role: "progressbar" }, el("i"));
  const facts = el("dl", { class: "facts" }), commands = el("div", { class: "commands" });
  const timeline = part("Attempts", el("div", { class: "picture" })), curves = part("Metrics and devices", el("div", { class: "picture" })), failure = part("Why it ended", el("pre", { class: "failure", tabindex: 0 }));
  const which = el("select", { "aria-label": "Host", hidden: true, onchange: () => { host = which.value; sift(); } }, el("option", { value: "" }, "All hosts"));
  const filter = el("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines", oninput: () => { text = filter.value.toLowerCase(); sift(); } });
  const foot = el("button", { "aria-pressed": "true", onclick: () => { follows = !follows; pressed(); draw(); } }, "Follow");
  const note = el("span", { class: "dim", role: "status" }, "…");
  const space = el("div"), log = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "What the hosts wrote", tabindex: 0, onscroll: scrolled }, space);
  main.append(el("div", { class: "job" },
    el("header", {}, el("div", { class: "title" }, heading, status), el("div", { class: "dim mono" }, id), said, progress),
    el("div", { class: "column" }, timeline, failure, curves,
      el("section", {}, el("div", { class: "logbar" }, el("h2", {}, "Log"), which, note, filter, foot), log)),
    el("aside", { class: "column" }, part("Facts", facts, false), part("In a terminal", commands, false))));

  function part(title, content, hidden = true) { return el("section", { hidden }, el("h2", {}, title), content); }
  function fill(section, ...content) { section.hidden = !content.some(Boolean); section.lastChild.replaceChildren(...content.filter(Boolean)); }
  function pressed() { foot.setAttribute("aria-pressed", String(follows)); foot.textContent = follows ? "Following" : "Follow"; }

  function tell(told) {
    final = told.final;
    heading.textContent = told.name;
    status.replaceChildren(state(told.state));
    const [done, total, unit, rate] = told.progress;
    const step = done || total ? `${done}${total ? ` of ${total}` : ""} ${unit}${rate ? `, ${Number(rate.toPrecision(3))} a second` : ""}` : "";
    said.textContent = told.final ? "" : [told.phase, told.attempts > 1 ? `attempt ${told.attempts}` : "", step, told.message].filter(Boolean).join(" · ");
    progress.hidden = told.final || !total;
    if (total) { progress.firstChild.style.width = `${Math.min(100, (100 * done) / total)}%`; progress.setAttribute("aria-valuenow", String(Math.round((100 * done) / total))); }
    fill(timeline, picture(told.timeline));
    if (told.curves) fill(curves, picture(told.curves));
    fill(failure, told.failure);
    const links = Object.entries(told.links).filter(([, address]) => /^https:\/\//.test(address)).map(([name, address]) => el("a", { href: address, rel: "noreferrer noopener", target: "_blank" }, name));
    facts.replaceChildren(...told.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { dir: "auto" }, value)]),
      ...(links.length ? [el("dt", {}, "console"), el("dd", {}, ...links.flatMap((link, index) => (index ? [", ", link] : [link])))] : []));
    commands.replaceChildren(...told.commands.map((line) => el("code", {}, line)));
    if (told.hosts > 1 && which.hidden) {
      hosts = told.hosts;
      which.hidden = false;
      for (let number = 0; number < Math.min(hosts, 4096); number++) which.append(el("option", { value: String(number) }, `Host ${number}`));
      sift();
    }
  }

  function add(more) {
    for (const line of more) lines.push(line);
    if (lines.length > MOST) { lines = lines.slice(-MOST * 0.9); dropped = true; sift(); return; }
    for (const line of more) if (fits(line)) shown.push(line);
    later();
  }
  const fits = (line) => (host === "" || String(line[0]) === host) && (!text || line[3].toLowerCase().includes(text));
  function sift() { shown = lines.filter(fits); longest = 0; later(); }
  function later() { if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; draw(); }); }
  function scrolled() { const end = log.scrollHeight - log.scrollTop - log.clientHeight < TALL * 2; if (end !== follows && !drawing) { follows = end; pressed(); } later(); }

  function draw() {
    if (gone) return;
    space.style.height = `${shown.length * TALL + 12}px`;
    if (follows) log.scrollTop = log.scrollHeight;
    const first = Math.max(0, Math.floor(log.scrollTop / TALL) - SPARE), last = Math.min(shown.length, first + Math.ceil(log.clientHeight / TALL) + 2 * SPARE);
    space.replaceChildren(...shown.slice(first, last).map(([from, kind, , line], index) => {
      const made = el("p", { class: kind || null, dir: "auto" }, hosts > 1 && host === "" ? el("span", { class: "host" }, String(from)) : null, line);
      made.style.transform = `translateY(${(first + index) * TALL + 6}px)`;
      longest = Math.max(longest, line.length);
      return made;
    }));
    space.style.minWidth = `calc(${Math.min(longest, 4200)}ch + 60px)`;
    const before = dropped || late ? ", earlier ones by kinor logs" : "";
    const of = attempt > 1 ? `attempt ${attempt}: ` : "";
    note.textContent = lines.length ? `${of}${shown.length.toLocaleString("en")} lines${before}` : final ? "nothing was written" : "nothing was written yet";
  }

  const on = (name, act) => stream.addEventListener(name, (event) => { if (!gone) act(JSON.parse(event.data)); });
  function open() {
    stream = new EventSource(`/api/stream?id=${encodeURIComponent(id)}`);
    on("begin", (told) => { if (!told.resumed) { lines = []; late = told.late; attempt = told.attempt; sift(); } trouble(); });
    on("state", (told) => { trouble(); tell(told); });
    on("attempt", (number) => { attempt = number; lines.push([0, "n", 0, `attempt ${number}`]); sift(); });
    on("log", add);
    on("curves", (drawn) => fill(curves, picture(drawn)));
    on("trouble", (why) => trouble(why));
    on("end", () => stream.close());
    stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) explain(); };
  }
  function explain() {  // a stream does not tell what its server has answered
    ask(`/api/job?id=${encodeURIComponent(id)}`).then(tell, (error) => trouble(error.message));
  }
  pressed();
  open();
  addEventListener("resize", later);
  return () => { gone = true; stream.close(); removeEventListener("resize", later); };
}
