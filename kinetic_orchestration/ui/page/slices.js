// The slices that are kept warm, as `kinor slices` lists them.
import { ask, dollars, el, length, state, trouble } from "./dom.js";

const COLUMNS = ["slice", "hardware", "where", "state", "whose", "until", "kept idle", "cost of that", "served"];

export function slices(main) {
  let timer = 0, gone = false;
  const sheet = el("div", { class: "sheet" }, el("div", { class: "empty" }, "Looking …"));
  main.append(sheet);

  async function refresh() {
    try {
      const told = await ask("/api/slices");
      if (!gone) show(told);
      trouble();
    } catch (error) {
      trouble(error.message);
    }
    if (!gone) timer = setTimeout(refresh, 10000);
  }

  function show({ slices: found, now }) {
    if (!found.length) {
      sheet.replaceChildren(el("div", { class: "empty" }, "No slice is kept: jobs with ", el("code", {}, "keep="), " leave one, for as long as they say."));
      return;
    }
    const rows = found.map((each) => el("tr", {},
      el("td", { class: "mono" }, each.slice), el("td", {}, each.hardware), el("td", {}, each.zone || each.backend || ""),
      el("td", {}, state(each.state), each.why ? el("div", { class: "dim" }, each.why) : null),
      el("td", {}, el("a", { href: `#/job/${each.job}` }, each.job)),
      el("td", {}, each.until > now ? `in ${length(each.until - now)}` : ""), el("td", {}, length(each.idle_seconds)),
      el("td", {}, dollars(each.usd)), el("td", {}, String(each.served))));
    sheet.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...rows)));
  }

  refresh();
  return () => { gone = true; clearTimeout(timer); };
}
