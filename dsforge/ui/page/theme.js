// The colour theme of the page and of reports: as the system, light or dark; set before the first
// paint. The button goes through the themes; `themechange` tells others to draw again.
"use strict";
{
  const THEMES = ["auto", "light", "dark"], KEY = "dsforge-theme";
  const root = document.documentElement;
  const now = () => root.dataset.theme ?? "auto";

  function set(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  function connect() {
    const button = document.getElementById("theme");
    const show = () => (button.textContent = `Theme: ${now()}`);
    const changed = () => dispatchEvent(new Event("themechange"));
    button.addEventListener("click", () => {
      set(THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length]);
      try {
        localStorage.setItem(KEY, now());
      } catch {
        // no storage: it lasts as long as the page
      }
      show();
      changed();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
    show();
  }

  try {
    set(localStorage.getItem(KEY));
  } catch {
    // no storage: as the system
  }
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", connect, { once: true });
  else connect();
}
