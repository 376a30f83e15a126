// The three views as tabs, and the service worker that keeps the page offline.
import { byId } from "./dom.js";

const VIEWS = ["plan", "lint", "diagnose"];

/** Make the tabs work by mouse and by arrow keys. */
export function tabs() {
  for (const view of VIEWS) {
    byId(`tab-${view}`).addEventListener("click", () => open(view));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move === undefined) return;
      const next = VIEWS[(VIEWS.indexOf(view) + move + VIEWS.length) % VIEWS.length];
      open(next);
      byId(`tab-${next}`).focus();
    });
  }
}

/** The view that is open. */
export const opened = () => VIEWS.find((view) => !byId(`view-${view}`).hidden);

function open(wanted) {
  for (const view of VIEWS) {
    byId(`view-${view}`).hidden = view !== wanted;
    byId(`tab-${view}`).setAttribute("aria-selected", String(view === wanted));
    byId(`tab-${view}`).tabIndex = view === wanted ? 0 : -1;
  }
}

/** Show the short answer at the foot of a phone only while the answer itself is out of sight. */
export function peek() {
  const watch = new IntersectionObserver(([entry]) => byId("peek").classList.toggle("seen", entry.isIntersecting));
  watch.observe(byId("answer-region"));
}

/** Keep the page offline, and say when a newer one has come. */
export async function offline() {
  if (!("serviceWorker" in navigator)) return;
  const registration = await navigator.serviceWorker.register("sw.js");
  const offer = (worker) => {
    byId("update").hidden = false;
    byId("reload").addEventListener("click", () => worker.postMessage("take over"), { once: true });
  };
  if (registration.waiting && navigator.serviceWorker.controller) offer(registration.waiting);
  registration.addEventListener("updatefound", () => {
    const worker = registration.installing;
    worker.addEventListener("statechange", () => {
      if (worker.state === "installed" && navigator.serviceWorker.controller) offer(worker);
    });
  });
  const had = Boolean(navigator.serviceWorker.controller);
  navigator.serviceWorker.addEventListener("controllerchange", () => had && location.reload());
}
