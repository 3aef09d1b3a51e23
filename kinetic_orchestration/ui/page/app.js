// The views, by the part of the address behind #, and the store's name.
import { ask, el, trouble } from "./dom.js";
import { jobs } from "./jobs.js";
import { job } from "./job.js";
import { slices } from "./slices.js";

const main = document.getElementById("main");
let leave = () => {};

function show() {
  leave();
  trouble();
  main.replaceChildren();
  const [, view, id] = location.hash.replace(/^#/, "").split("/");
  const shown = view === "job" ? "jobs" : view || "jobs";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "job" && id) leave = job(main, id);
  else if (view === "slices") leave = slices(main);
  else leave = jobs(main);
}

addEventListener("hashchange", show);
show();
ask("/api/store").then(
  (told) => {
    document.getElementById("store").replaceChildren(el("span", { title: told.store.slice(0, 500) }, told.store));
    document.title = `kinor – ${told.store.slice(0, 80)}`;
  },
  (error) => trouble(error.message),
);
